"""Fixtures over the six packages: `folder` runs a test once a package, the others open what belongs to that package."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    """A package's folder."""
    path: Path = request.param
    return path


@pytest.fixture
def project(folder: Path) -> dict[str, Any]:
    """The [project] table of the package."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


@pytest.fixture(scope="session")
def projects() -> dict[str, dict[str, Any]]:
    """Every package's [project] table, by name."""
    tables = (tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"] for folder in FOLDERS)
    return {table["name"]: table for table in tables}


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder that `nox -s build` fills."""
    path = ROOT / "dist"
    assert list(path.glob("*.whl")), "no wheels in dist/: run `nox -s build` first"
    return path


@pytest.fixture
def wheel(folder: Path, dist: Path) -> Iterator[zipfile.ZipFile]:
    """The package's built wheel, open."""
    (path,) = dist.glob(f"{folder.name.replace('-', '_')}-*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


@pytest.fixture
def sdist(folder: Path, dist: Path) -> Iterator[tarfile.TarFile]:
    """The package's built source archive, open."""
    (path,) = dist.glob(f"{folder.name.replace('-', '_')}-*.tar.gz")
    with tarfile.open(path) as opened:
        yield opened

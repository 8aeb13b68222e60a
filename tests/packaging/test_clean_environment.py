"""The six wheels in an environment that holds nothing else, offline; and what starts without torch."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

FOREIGN = ("torch", "transformers", "numpy")


def run(*command: str | Path) -> str:
    """Standard output of a command that must succeed, away from the checkout and its PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, encoding="utf-8", env=environment, cwd=sys.prefix
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory, dist: Path) -> Path:
    """The folder of commands of a new environment with the six wheels and no dependency of theirs."""
    root = tmp_path_factory.mktemp("clean environment ü")
    venv.create(root, symlinks=os.name != "nt")
    folder = root / ("Scripts" if os.name == "nt" else "bin")
    wheels = sorted(dist.glob("*.whl"))
    pip = (sys.executable, "-m", "pip", "--python", folder / "python")
    run(*pip, "install", "--no-index", "--no-deps", "--quiet", *wheels)
    return folder


def test_help_needs_nothing(scripts: Path) -> None:
    text = run(scripts / "wllm", "--help")
    assert all(command in text for command in ("serve", "chat"))


@pytest.mark.parametrize("module", ["wllm_cache", "wllm_sched"])
def test_bottom_packages_need_nothing(scripts: Path, module: str) -> None:
    where = run(scripts / "python", "-c", f"import {module}; print({module}.__file__)")
    assert Path(where.strip()).is_relative_to(scripts.parent)


@pytest.mark.parametrize("module", ["wllm_cache", "wllm_sched", "wllm_api", "wllm", "wllm.cli"])
def test_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({FOREIGN!r})))"
    assert run(sys.executable, "-c", code).strip() == "[]"


def test_installed_from_the_wheels(project: dict[str, Any]) -> None:
    assert importlib.metadata.version(project["name"]) == project["version"]


def test_every_requirement_is_installed(project: dict[str, Any]) -> None:
    for text in importlib.metadata.requires(project["name"]) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            assert importlib.metadata.version(requirement.name) in requirement.specifier

"""What is inside the built wheels and source archives."""

from __future__ import annotations

import email.message
import email.parser
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# What the build of wllm-kernels adds to the wheel, and an editable install to the checkout: see test_kernels.py.
BUILT = {"wllm_kernels/kernels.wk", "wllm_kernels/kernels-report.txt"}


def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.parser.Parser().parsestr(wheel.read(name).decode("utf-8"))


def sources(folder: Path) -> dict[str, bytes]:
    """Path inside the wheel -> content, of all files under src/ that are neither a tool's cache nor built."""
    root = folder / "src"
    files = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    cached = {name for name in files if any(part.startswith((".", "__pycache__")) for part in name.parts)}
    named = {name.as_posix(): files[name] for name in files.keys() - cached}
    return {name: named[name].read_bytes() for name in named.keys() - BUILT}


def test_sources_and_nothing_else(folder: Path, wheel: zipfile.ZipFile) -> None:
    shipped = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    built = {name: shipped.pop(name) for name in shipped.keys() & BUILT}
    assert shipped == sources(folder)
    assert built.keys() == (BUILT if folder.name == "wllm-kernels" else set())


def test_typed(folder: Path, wheel: zipfile.ZipFile) -> None:
    assert f"{folder.name.replace('-', '_')}/py.typed" in wheel.namelist()


def test_no_tests(wheel: zipfile.ZipFile) -> None:
    names = [Path(name) for name in wheel.namelist()]
    assert not [name for name in names if "tests" in name.parts or name.name.startswith(("test_", "conftest"))]


def test_any_machine(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert wheel.filename.endswith("-py3-none-any.whl")


def test_licence(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()
    assert metadata(wheel)["License-Expression"] == "Apache-2.0"


def test_metadata_as_declared(project: dict[str, Any], wheel: zipfile.ZipFile) -> None:
    built = metadata(wheel)
    assert (built["Name"], built["Version"]) == (project["name"], project["version"])
    assert built["Summary"] == project["description"]
    assert built["Requires-Python"] == project["requires-python"]
    needs = built.get_all("Requires-Dist", [])
    extras = project.get("optional-dependencies", {})
    wanted = [f"{need}; extra == '{extra}'" for extra in extras for need in extras[extra]]
    assert set(map(Requirement, needs)) == set(map(Requirement, [*project["dependencies"], *wanted]))


def test_readme_is_the_description(folder: Path, wheel: zipfile.ZipFile) -> None:
    built = metadata(wheel)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert built["Description-Content-Type"] == "text/markdown"
    assert str(built.get_payload()).strip() == readme.strip()


def test_readme_is_short(folder: Path) -> None:
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert "```python" in lines


def test_command(folder: Path, wheel: zipfile.ZipFile) -> None:
    scripts = [wheel.read(name).decode("utf-8") for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    assert scripts == (["[console_scripts]\nwllm = wllm.cli:main\n"] if folder.name == "wllm" else [])


def test_source_archive_builds_the_same(folder: Path, sdist: tarfile.TarFile) -> None:
    inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= inside
    assert {f"src/{name}" for name in sources(folder)} <= inside
    assert not {f"src/{name}" for name in BUILT} & inside
    assert not [name for name in inside if "__pycache__" in name or name.startswith((".nox", "dist/"))]

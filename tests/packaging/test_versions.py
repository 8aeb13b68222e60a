"""One version for the whole house, and a bump that keeps it so."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def needs(project: dict[str, Any]) -> dict[str, Requirement]:
    """What a package declares, by name."""
    return {requirement.name: requirement for requirement in map(Requirement, project["dependencies"])}


def test_one_version(projects: dict[str, dict[str, Any]]) -> None:
    assert len({project["version"] for project in projects.values()}) == 1


def test_siblings_are_pinned(project: dict[str, Any], projects: dict[str, dict[str, Any]]) -> None:
    for name in needs(project).keys() & projects.keys():
        assert str(needs(project)[name].specifier) == f"=={projects[name]['version']}"


def test_borders(projects: dict[str, dict[str, Any]]) -> None:
    """Who needs whom in the house; nothing else."""
    assert {name: sorted(needs(project).keys() & projects.keys()) for name, project in projects.items()} == {
        "wllm-cache": [],
        "wllm-kernels": [],
        "wllm-sched": ["wllm-cache"],
        "wllm-api": ["wllm-sched"],
        "wllm-runtime": ["wllm-cache", "wllm-kernels", "wllm-sched"],
        "wllm": ["wllm-api", "wllm-cache", "wllm-kernels", "wllm-runtime", "wllm-sched"],
    }


@pytest.mark.parametrize("name", ["wllm-cache", "wllm-sched"])
def test_standard_library_only(name: str, projects: dict[str, dict[str, Any]]) -> None:
    assert needs(projects[name]).keys() <= projects.keys()


def test_same_pythons(projects: dict[str, dict[str, Any]]) -> None:
    assert {project["requires-python"] for project in projects.values()} == {">=3.11"}
    assert len({tuple(project["classifiers"]) for project in projects.values()}) == 1


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A root that holds the six pyproject.toml and nothing else."""
    for path in ROOT.glob("packages/*/pyproject.toml"):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True)
        shutil.copyfile(path, target)
    return tmp_path


def bump(version: str, root: Path) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / ".ci" / "bump.py")
    return subprocess.run([sys.executable, script, version, str(root)], capture_output=True, encoding="utf-8")


def test_bump_sets_versions_and_pins_only(copy: Path, projects: dict[str, dict[str, Any]]) -> None:
    assert bump("9.8.7rc1", copy).returncode == 0
    for path in copy.glob("packages/*/pyproject.toml"):
        after = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        before = projects[after["name"]]
        pinned = needs(after).keys() & projects.keys()
        assert {str(needs(after)[name].specifier) for name in pinned} <= {"==9.8.7rc1"}
        assert after.pop("version") == "9.8.7rc1"
        restored = [dep.replace("==9.8.7rc1", f"=={before['version']}") for dep in after["dependencies"]]
        assert {**after, "dependencies": restored, "version": before["version"]} == before


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3 ", "latest"])
def test_bump_refuses(version: str, copy: Path, projects: dict[str, dict[str, Any]]) -> None:
    result = bump(version, copy)
    assert result.returncode == 1
    assert "wants a version" in result.stderr
    for path in copy.glob("packages/*/pyproject.toml"):
        table = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        assert table["version"] == projects[table["name"]]["version"]

"""The pages say what the command line says, and name and link only what is there."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wllm.cli import build_parser

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")]
PLACES = ("packages", "bench", "tests", ".ci")
SOURCES = [f"/{path.relative_to(ROOT).as_posix()}" for place in PLACES for path in (ROOT / place).rglob("*")]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def help_of(command: str) -> str:
    arguments = [sys.executable, "-m", "wllm", command, "--help"]
    return subprocess.run(arguments, capture_output=True, encoding="utf-8", check=True).stdout


def test_every_flag_is_in_the_configuration_page() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(--[a-z-]+)`", page, flags=re.MULTILINE))
    helps = help_of("serve") + help_of("chat")
    offered = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", helps)) - {"--help"}
    assert "--port" in offered
    # The other side of a switch has no row of its own.
    assert documented == {flag for flag in offered if flag.replace("--no-", "--") not in offered - {flag}}


def links(page: Path) -> list[str]:
    """Targets of a page's links, without those in code and those inside the page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\]\(([^)#\s]+)", text)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    assert not [link for link in links(page) if "://" not in link and not (page.parent / link).exists()]


def test_package_readmes_stand_alone() -> None:
    """They are shown on pages of their own, where a relative link leads nowhere."""
    pages = sorted(ROOT.glob("packages/*/README.md"))
    assert not [(page.parent.name, link) for page in pages for link in links(page) if "://" not in link]


def flags_of(parser: argparse.ArgumentParser, name: str) -> dict[str, set[str]]:
    """The flags of each command, below it those of its commands."""
    found = {name: {option for action in parser._actions for option in action.option_strings}}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                found |= flags_of(below, f"{name} {word}")
    return found


@each_page
def test_commands_and_their_flags_are_there(page: Path) -> None:
    flags = flags_of(build_parser(), "wllm")
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^(?:\S*[/\\])?(wllm(?:\.exe)? [a-z].*)", text, re.MULTILINE)
    for words in (line.split() for line in [*lines, *re.findall(r"`(wllm [a-z][^`]*)`", text)]):
        command = " ".join(words[: 3 if words[1] in ("bench", "models") else 2])
        assert command in flags
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags[command]
    if page.parent.name == "docs":
        alone = set(re.findall(r"(?<![\w`-])`(--[a-z-]*[a-z])(?![\w.-])", text))
        assert alone <= set().union(*flags.values())


@each_page
def test_files_and_modules_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`([\w./]+\.(?:py|cu|cuh))`", text)
    assert [name for name in files if not any(path.endswith(f"/{name}") for path in SOURCES)] == []
    modules = [name.rpartition(".") for name in re.findall(r"`(wllm_\w+\.[\w.]+)`", text)]
    assert [f"{owner}.{name}" for owner, _, name in modules if not is_there(owner, name)] == []


def test_every_invariant_is_held_somewhere() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    invariants = re.findall(r"^\| (I\d+) \|", page, re.MULTILINE)
    assert len(invariants) > 20
    files = [path for place in ("packages", "tests") for path in (ROOT / place).rglob("*.py")]
    sources = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in invariants if not re.search(rf"\b{name}\b", sources)] == []


def is_there(owner: str, name: str) -> bool:
    """A module, or what a module or class of that name has."""
    try:
        if importlib.util.find_spec(f"{owner}.{name}") is not None:
            return True
        found: object = importlib.import_module(owner)
    except ModuleNotFoundError:
        above, _, last = owner.rpartition(".")
        found = getattr(importlib.import_module(above), last, None)
    return hasattr(found, name)

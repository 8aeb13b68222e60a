"""The pages say what the command line says, and link only to what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")]


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert not [link for link in links(page) if "://" not in link and not (page.parent / link).exists()]


def test_package_readmes_stand_alone() -> None:
    """They are shown on pages of their own, where a relative link leads nowhere."""
    pages = sorted(ROOT.glob("packages/*/README.md"))
    assert not [(page.parent.name, link) for page in pages for link in links(page) if "://" not in link]

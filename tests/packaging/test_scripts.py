"""PowerShell, in scripts and on pages: what 5.1 can parse, and what `install.ps1` shares with the packages.

They are parsed here, not run: `install.ps1` runs on the Windows runners of CI, with 5.1 and with 7.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_powershell

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / "scripts/install.ps1", *sorted(ROOT.glob("bench/**/*.ps1"))]
INSTALL = SCRIPTS[0].read_text(encoding="ascii")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.md")]
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))
# These the parser takes, and 5.1 does not.
NEWER = {"&&", "||"}


def offences(source: bytes) -> list[tuple[int, str]]:
    """Lines with something that PowerShell 5.1 cannot parse, or reads wrongly without a mark at the file's start."""
    found = [(number, "not ASCII") for number, line in enumerate(source.splitlines(), 1) if not line.isascii()]
    for node in nodes(PARSER.parse(source).root_node):
        if node.is_error or node.is_missing or node.type in NEWER:
            found.append((node.start_point.row + 1, node.type))
    return found


def nodes(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_powershell_5_parses_it(script: Path) -> None:
    assert offences(script.read_bytes()) == []


def blocks() -> list[tuple[str, str]]:
    """The blocks of PowerShell on all pages, with the name of the page."""
    found = [(page, page.read_text(encoding="utf-8")) for page in PAGES]
    block = re.compile(r"^ *```powershell\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    return [(page.name, textwrap.dedent(text)) for page, pages in found for text in block.findall(pages)]


def test_powershell_5_parses_the_pages() -> None:
    assert len(blocks()) >= 6
    assert [(page, text, found) for page, text in blocks() if (found := offences(text.encode()))] == []
    bodies = re.findall(r"'(\{.*\})'", "".join(text for _, text in blocks()))
    assert len(bodies) >= 2 and all(json.loads(body)["messages"] for body in bodies)


@pytest.mark.parametrize(
    "planted", ["$a = $b ?? 1", "$a = $b ? 1 : 2", "a && b", "a || b", "if ($a) {", "$a?.Length", "'a", "Write-Host ä"]
)
def test_what_it_cannot_parse_is_seen(planted: str) -> None:
    assert offences(f"{INSTALL}\n{planted}\n".encode())


def test_every_program_is_asked_how_it_ended() -> None:
    """PowerShell goes on after a program that fails."""
    lines = INSTALL.splitlines()
    called = [number for number, line in enumerate(lines) if re.match(r"\s*(\$\w+ = )?& ", line)]
    assert len(called) >= 2
    assert [lines[number] for number in called if "$LASTEXITCODE" not in lines[number + 1]] == []


def test_paths_are_no_patterns() -> None:
    """A folder called `models [old]` is a pattern to a path that is not literal."""
    commands = re.findall(r"(?:Test-Path|Remove-Item|Get-ChildItem) \S+", INSTALL)
    assert len(commands) >= 4
    assert [command for command in commands if not command.endswith("-LiteralPath")] == []


def test_it_takes_the_pythons_that_the_packages_name() -> None:
    project = tomllib.loads((ROOT / "packages/wllm/pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = {line.rpartition(" ")[2] for line in project["classifiers"] if ":: 3." in line}
    assert set(re.findall(r"py -(3\.\d+)", INSTALL)) == pythons
    assert pythons == set(re.findall(r"3\.\d+", INSTALL.partition("Needs Python")[2].partition(";")[0]))


@pytest.mark.parametrize(
    ("version", "bits", "taken"),
    [((3, 10), 64, False), ((3, 11), 64, True), ((3, 13), 64, True), ((3, 14), 64, False), ((3, 12), 32, False)],
)
def test_it_looks_at_the_version_and_the_bits(version: tuple[int, int], bits: int, taken: bool) -> None:
    (test,) = re.findall(r'\$test = "(.+)"', INSTALL)
    # Windows PowerShell drops quotes inside an argument, and puts a variable's value where a $ is.
    assert not {'"', "$", "`"} & set(test)
    as_if = f"import sys; sys.version_info, sys.maxsize = {version}, 2**{bits - 1} - 1; "
    assert subprocess.run([sys.executable, "-c", as_if + test]).returncode == (not taken)


def test_the_modules_that_it_runs_are_there() -> None:
    modules = set(re.findall(r'"-m", "(wllm[\w.]+)"', INSTALL))
    assert modules == {"wllm.doctor.torch_build"}
    for module in modules:
        done = subprocess.run([sys.executable, "-m", module, "--cpu"], capture_output=True, encoding="utf-8")
        assert done.returncode == 0 and done.stdout.splitlines()[1] == "--index-url"

"""The rules of the house that ruff and mypy cannot check. Prints each offence as `path:line: reason`; exits 1 on any.

Sizes (a file is a noun, not a library), names that a Windows file system takes, words that only work on POSIX or
open a door, text without an encoding, and imports: a package imports the standard library, itself and what its
pyproject.toml declares. Names that Windows lacks are for ruff (never) and mypy (only behind a look at sys.platform);
test_guards.py plants one of each kind.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_LINES = 400
CODE = {".py", ".cu", ".cuh", ".h", ".cpp"}
SKIPPED = {"__pycache__", "dist", "site", "build"}
RESERVED = re.compile(r"(?i)(aux|con|nul|prn|com\d|lpt\d)(\..*)?|.*[:<>\"|?*\\].*|.*[. ]")

# Searched in the packages' sources only: tests and scripts may name what they guard against.
FORBIDDEN = {
    r"add_signal_handler": "the Proactor loop has no signal handlers: signal.signal + call_soon_threadsafe",
    r"\.add_(reader|writer)\(": "the Proactor loop has neither: read and write in a thread",
    r"(get_context|set_start_method)\(.fork": "Windows cannot fork: spawn",
    r"\bos\.kill\b|\bfrom os import .*\bkill\b": "on Windows it ends the process, whatever the signal: psutil",
    r"\b(preexec_fn|start_new_session|process_group|pass_fds)=": "Windows has none of it, or ignores it",
    r"ipc://|create_unix_(server|connection)": "Windows has no Unix sockets",
    r"[\"']/(bin|dev|etc|home|opt|proc|root|run|sys|tmp|usr|var)(/|[\"'])": "a POSIX path",
    r"[\"']HOME[\"']": "Windows has no HOME: Path.home()",
    r"\.(rename|symlink_to)\(": "fails on Windows: replace() where a target may exist; no links",
    r"\b(text|universal_newlines)=True": "the code page on Windows: encoding='utf-8'",
    r"(?<!\{)%-[a-zA-Z]\b": "a format of dates that Windows refuses",
    r"(?<!int\()\btime\.time\(": "steps of 15.6 ms, and it is set back: perf_counter; int(time.time()) is a date",
    r"\bos\.EX_": "Windows lacks some of them",
    r"\bimport os as\b": "call it os: these rules know it by its name",
    r"\bos\.system\(|shell=True|\bsubprocess\.get(status)?output\b": "no shell: subprocess with a list",
    r"\.so[\"']": "a Linux library name",
    r"\btorch\.load\(": "no pickled weights",
    r"\bmmap\.|\bimport mmap|\bmemmap\b|mmap_mode|\bsafe_open\b|\bGGUFReader\b": "a mapped file stays busy: read it",
    r"trust_remote_code=True": "no remote code",
}


def files() -> list[Path]:
    """Every file of the tree, without what tools put there."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if parts[0] not in {".git", ".nox", ".venv"} and SKIPPED.isdisjoint(parts) and path.is_file():
            found.append(path)
    return found


def size(path: Path) -> Iterator[tuple[int, str]]:
    """Offence: longer than the cap."""
    lines = path.read_text(encoding="utf-8").count("\n")
    if path.suffix in CODE and lines > MAX_LINES:
        yield lines, f"{lines} lines; the cap is {MAX_LINES}: split it along its nouns"


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Offences: patterns of FORBIDDEN."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for pattern, reason in FORBIDDEN.items():
            if found := re.search(pattern, line):
                yield number, f"{found.group()!r}: {reason}"


def is_text_mode(node: ast.expr) -> bool:
    """Whether it is a mode of open() such as "w" or "rt"."""
    return isinstance(node, ast.Constant) and set(str(node.value)) <= set("artwx+")


def encodings(path: Path) -> Iterator[tuple[int, str]]:
    """Offences: text files without an encoding, where ruff does not see what is opened."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name, given = getattr(node.func, "attr", getattr(node.func, "id", "")), len(node.args)
        text_modes = [is_text_mode(argument) for argument in node.args]
        compressed = text_modes[1:] == [True] and "t" in str(getattr(node.args[1], "value", ""))
        lacking = {
            "read_text": given == 0,
            "write_text": given == 1,
            "open": isinstance(node.func, ast.Attribute) and (text_modes in ([], [True]) or compressed),
            "fdopen": given == 1 or text_modes[1:] == [True],
            "FileHandler": True,
            "RotatingFileHandler": True,
            "TimedRotatingFileHandler": True,
        }
        if lacking.get(name) and not any(keyword.arg in ("encoding", None) for keyword in node.keywords):
            yield node.lineno, f"{name}() without encoding= takes the code page on Windows"


def imports(path: Path, allowed: set[str]) -> Iterator[tuple[int, str]]:
    """Offences: imports of what the package does not declare."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name.partition(".")[0] not in allowed | sys.stdlib_module_names:
                yield node.lineno, f"imports {name}, which the package's pyproject.toml does not declare"


def offences() -> Iterator[str]:
    """All of them, as printed."""
    tree = files()
    lowered: dict[str, Path] = {}
    for path in tree:
        name = path.relative_to(ROOT)
        if any(RESERVED.fullmatch(part) for part in name.parts):
            yield f"{name.as_posix()}:1: Windows does not take this name"
        twin = lowered.setdefault(name.as_posix().lower(), name)
        if twin != name:
            yield f"{name.as_posix()}:1: differs from {twin.as_posix()} only in case"
        if path.suffix in CODE:
            yield from (f"{name.as_posix()}:{line}: {reason}" for line, reason in size(path))
        if path.suffix == ".py":
            yield from (f"{name.as_posix()}:{line}: {reason}" for line, reason in encodings(path))
    for package in sorted(ROOT.glob("packages/*/pyproject.toml")):
        text = package.read_text(encoding="utf-8")
        for line, words_of_line in enumerate(text.splitlines(), start=1):
            if "x86_64" in words_of_line and "AMD64" not in words_of_line:
                yield f"{package.relative_to(ROOT).as_posix()}:{line}: on Windows this processor is called AMD64"
        project = tomllib.loads(text)["project"]
        extras = [dep for deps in project.get("optional-dependencies", {}).values() for dep in deps]
        declared = [re.split(r"[^\w.-]", dep)[0] for dep in [project["name"], *project["dependencies"], *extras]]
        allowed = {name.replace("-", "_").lower() for name in declared}
        # Its distributions are named by their places inside of one package.
        allowed |= {"opentelemetry"} if "opentelemetry_api" in allowed else set()
        for path in sorted((package.parent / "src").rglob("*.py")):
            name = path.relative_to(ROOT)
            for line, reason in [*words(path), *imports(path, allowed)]:
                yield f"{name.as_posix()}:{line}: {reason}"


def main() -> None:
    """Print the offences; exit 1 when there are any."""
    found = list(offences())
    print("\n".join(found) or f"house rules: {len(files())} files, no offence")
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

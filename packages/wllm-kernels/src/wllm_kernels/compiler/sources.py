"""A family's source text: the prelude and its own parts as one text, with the options it is compiled with.

Owns what the hash of a family covers, and the rules that every file of csrc/ keeps. Nothing here compiles.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from wllm_kernels.compiler.families import PRELUDE, Family

CSRC = Path(__file__).parents[1] / "csrc"
# -default-device: functions without a mark are device code. -v: the log tells each kernel's registers and spills.
OPTIONS = ("-std=c++17", "-default-device", "--ptxas-options=-v")

_RULES = (
    (r"#\s*include\b", "no include: the build concatenates the files, see families.py"),
    (r"(?<!long )\blong\b(?! long)", "no `long`: it has 32 bits on Windows; i32 and i64 are in types.cuh"),
    (r"\bsize_t\b", "no `size_t`: its size is the host compiler's choice; u64 is in types.cuh"),
    (r"^(?!.*\bextern\b).*__shared__", "no static shared memory: SHARED_MEMORY, which the emulator fills and checks"),
)
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """A family's whole text; `digest` changes with whatever changes its machine code, except target and compiler."""

    family: str
    text: str
    digest: str


def source_of(family: Family, csrc: Path = CSRC) -> Source:
    """Concatenate the family's files; the compiler's messages name the file of csrc/ and the line in it."""
    pieces = [f"#define {name} {value}\n" for name, value in family.defines]
    for part in (*PRELUDE, *family.parts):
        # As text: a checkout with Windows newlines has the same digest.
        pieces.append(f'#line 1 "{part}"\n{(csrc / part).read_text(encoding="utf-8")}')
    text = "".join(pieces)
    return Source(family.name, text, hashlib.sha256("\0".join((*OPTIONS, text)).encode()).hexdigest())


def offences(text: str) -> list[tuple[int, str]]:
    """Where a file of csrc/ breaks a rule: line number and reason. Comments and strings may say anything."""
    code = _COMMENT_OR_STRING.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    return [
        (number, reason)
        for number, line in enumerate(code.split("\n"), start=1)
        for pattern, reason in _RULES
        if re.search(pattern, line)
    ]

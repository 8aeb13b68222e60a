"""A fault, a table of them, and how the obvious ones are found in a source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from emulator.backend import CSRC

# Whatever makes threads wait for each other or for memory; each occurrence in turn is left out.
_DROPPED = re.compile(
    r"__syncthreads\(\);|__syncwarp\([^()]*\);|__threadfence\(\);|wait_for_previous_kernel\(\);"
    r"|copy_async_wait<[^<>]*>\(\);|copy_async_commit\(\);"
)
_FUNCTION = re.compile(r"^(?:KERNEL\(|[A-Za-z][^(\n]* )(\w+)[(,]", flags=re.MULTILINE)

MOVED = "the sources have changed since the table was read"


@dataclass(frozen=True, slots=True)
class Fault:
    """A change to a file: `replacement` in place of `text` at `start`."""

    name: str
    file: str
    start: int
    text: str
    replacement: str

    def apply(self, file: str, text: str) -> str:
        """The text of a file with the fault in it, if it is the file."""
        if file != self.file:
            return text
        end = self.start + len(self.text)
        assert text[self.start : end] == self.text, MOVED
        return text[: self.start] + self.replacement + text[end:]


@dataclass(frozen=True, slots=True)
class Table:
    """The faults of some kernels, and the tests that look for them.

    Every file loses each of its waits and barriers in turn, and gets its further changes: by name, a text that stands
    there exactly once and what comes in its place. `survivors`: by the names of faults, why no test can notice them;
    one that is caught after all is as wrong as another that survives.
    """

    tests: tuple[str, ...]
    files: Mapping[str, Mapping[str, tuple[str, str]]]
    survivors: Mapping[str, str] = field(default_factory=dict)

    def faults(self) -> list[Fault]:
        """All of them; raises `ValueError` for a name or a text that the sources no longer have."""
        found: list[Fault] = []
        for file, changes in self.files.items():
            source = (CSRC / file).read_text(encoding="utf-8")
            found.extend(_dropped(file, source))
            for name, (text, replacement) in changes.items():
                if source.count(text) != 1:
                    raise ValueError(
                        f"{file} has {source.count(text)} times {text!r} of {name!r}; name a text it has once"
                    )
                found.append(Fault(f"{file}: {name}", file, source.index(text), text, replacement))
        if unknown := self.survivors.keys() - {fault.name for fault in found}:
            raise ValueError(f"no such faults: {sorted(unknown)}")
        return found


def _dropped(file: str, source: str) -> Iterator[Fault]:
    functions = [(found.start(), found.group(1)) for found in _FUNCTION.finditer(source)]
    counts: dict[str, int] = {}
    for found in _DROPPED.finditer(source):
        function = next((name for start, name in reversed(functions) if start < found.start()), "")
        name = f"{file}: {function}: {found.group()}"
        counts[name] = counts.get(name, 0) + 1
        yield Fault(f"{name} #{counts[name]}", file, found.start(), found.group(), ";")

"""What ptxas said about each kernel, as a table: the build keeps it beside the container, the tests read it.

A spilled register is kept in memory: a kernel that spills is slower than its author thinks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

FILE_NAME = "kernels-report.txt"
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*? (\d+) bytes smem)?")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What a kernel takes on one target: registers of a thread; bytes of stack, spills and static shared memory."""

    family: str
    kernel: str
    target: str
    registers: int
    stack: int
    spills: int
    shared: int

    @property
    def head_dim(self) -> int | None:
        """The head dimension in the kernel's name, None for kernels without."""
        found = re.search(r"_d(\d+)(?:_|$)", self.kernel)
        return int(found[1]) if found else None


def kernels_in(family: str, log: str) -> list[KernelUse]:
    """The kernels that a compiler's log names; PTX has none, ptxas sees it on the user's machine."""
    _, *pieces = _ENTRY.split(log)
    kernels = []
    for kernel, target, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        # Of the kernel itself, and of functions that were not inlined.
        properties = [tuple(map(int, found)) for found in _PROPERTIES.findall(text)]
        used = _USED.search(text)
        assert properties and used, f"ptxas's log has no numbers for {kernel}: {text}"
        stack, spills = properties[0][0], sum(stores + loads for _, stores, loads in properties)
        kernels.append(KernelUse(family, kernel, target, int(used[1]), stack, spills, int(used[2] or 0)))
    return kernels


def table(kernels: Iterable[KernelUse]) -> str:
    """The table, a line a kernel and target, columns apart by spaces."""
    rows = [tuple(field.name for field in fields(KernelUse)), *sorted(map(astuple, kernels))]
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def parse(text: str) -> list[KernelUse]:
    """The kernels of a table."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return [KernelUse(family, kernel, target, *map(int, numbers)) for family, kernel, target, *numbers in rows]

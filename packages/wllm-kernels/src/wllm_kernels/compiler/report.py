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
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
# Parameters lie in constant bank 0, behind what the driver passes. ptxas tells its size up to compute capability 8.9.
_CONSTANTS = re.compile(r"(\d+) bytes cmem\[0\]")
_CONSTANTS_OF_DRIVER = 0x160


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What a kernel takes on one target: registers of a thread; bytes of stack, spills, static shared memory and
    parameters (None where the compiler does not say).
    """

    family: str
    kernel: str
    target: str
    registers: int
    stack: int
    spills: int
    shared: int
    parameters: int | None

    @property
    def head_dim(self) -> int | None:
        """The head dimension in the name of the kernel or its family, None where there is none."""
        found = re.search(r"_d(\d+)(?=[_ ]|$)", f"{self.kernel} {self.family}")
        return int(found[1]) if found else None


def kernels_in(family: str, log: str) -> list[KernelUse]:
    """The kernels that a compiler's log names; PTX has none, ptxas sees it on the user's machine."""
    _, *pieces = _ENTRY.split(log)
    kernels = []
    for kernel, target, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        # Of the kernel itself, and of functions that were not inlined.
        properties = [tuple(map(int, found)) for found in _PROPERTIES.findall(text)]
        registers, shared, constants = (_number(pattern, text) for pattern in (_REGISTERS, _SHARED, _CONSTANTS))
        assert properties and registers is not None, f"ptxas's log has no numbers for {kernel}: {text}"
        stack, spills = properties[0][0], sum(stores + loads for _, stores, loads in properties)
        parameters = None if constants is None else constants - _CONSTANTS_OF_DRIVER
        kernels.append(KernelUse(family, kernel, target, registers, stack, spills, shared or 0, parameters))
    return kernels


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def table(kernels: Iterable[KernelUse]) -> str:
    """The table, a line a kernel and target, columns apart by spaces, "-" for None."""
    ordered = sorted(kernels, key=lambda use: (use.family, use.kernel, use.target))
    rows = [[field.name for field in fields(KernelUse)]]
    rows += [["-" if cell is None else str(cell) for cell in astuple(use)] for use in ordered]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def parse(text: str) -> list[KernelUse]:
    """The kernels of a table."""
    uses = []
    for line in text.splitlines()[1:]:
        family, kernel, target, *numbers = line.split()
        registers, stack, spills, shared = map(int, numbers[:4])
        parameters = None if numbers[4] == "-" else int(numbers[4])
        uses.append(KernelUse(family, kernel, target, registers, stack, spills, shared, parameters))
    return uses

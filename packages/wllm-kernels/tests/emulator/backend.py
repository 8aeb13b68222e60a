"""A backend of `wllm_kernels.device` that runs the kernels on the CPU: g++ compiles their sources with the twin of
csrc/primitives.cuh beside this file (runtime.h says what it checks).

How to use it in a test, with the fixture `emulator` of conftest.py (the test is skipped where there is no g++):

    def test_norm(emulator: Emulator) -> None:
        x = emulator.guard(torch.randn(3, 40))         # any access in front of it or behind it is reported
        out = torch.full_like(x, torch.nan)
        device.norm.rms_norm(x, weight, 1e-5, None, 0.0, out)     # the product's launch code, with CPU tensors
        wllm_kernels.reference.rms_norm(x, weight, 1e-5, None, 0.0, expected)

`emulator.seed` picks the order in which blocks, warps and lanes run: vary it where the order could matter.
`EmulatorError` is what the hardware would do badly: divergent collectives and barriers, unaligned or illegal accesses,
and of kernels that overlap (`Kernel`) accesses to guarded tensors in front of the wait for the previous kernel.
Families are compiled at their first launch and kept, by the hash of source and options, in pytest's cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from wllm_kernels import compiler
from wllm_kernels.compiler.families import FAMILIES, PRELUDE
from wllm_kernels.device.kernel import DeviceProperties, Grid, Launch

HERE = Path(__file__).parent
CSRC = Path(compiler.__file__).parent.parent / "csrc"
Change = Callable[[str, str], str]  # from a file's name and text to the text to compile
GUARD_BYTES = 1024 * 1024
# No contraction of a * b + c: what a kernel wants fused it says. Traps become an EmulatorError. Locals without a value
# get a conspicuous one.
OPTIONS = (
    "-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-ftrivial-auto-var-init=pattern",
    "-fno-strict-aliasing", "-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error",
    "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-w",
)  # fmt: skip


class EmulatorError(AssertionError):
    """A kernel did what a GPU answers with an error, a hang or garbage."""


def _as_it_is(file: str, text: str) -> str:
    return text


def source_of_family(name: str, change: Change = _as_it_is) -> str:
    """The source of a family with the twin in it; `change` may replace the texts of the product's files."""
    family = next(family for family in FAMILIES if family.name == name)
    defines = "".join(f"#define {macro} {value}\n" for macro, value in family.defines)
    return defines + source_of_files(family.parts, change)


def source_of_files(parts: tuple[str, ...], change: Change = _as_it_is) -> str:
    """These files of csrc/ behind the prelude."""
    pieces = []
    for part in (*PRELUDE, *parts):
        if part == "primitives.cuh":
            files = [HERE / twin for twin in ("runtime.h", "grid.h", "primitives.h", "matrices.h")]
        else:
            files = [CSRC / part]
        for file in files:
            text = file.read_text(encoding="utf-8")
            pieces.append(f'#line 1 "{file.name}"\n{change(file.name, text) if file.parent == CSRC else text}\n')
    return "".join(pieces)


class Emulator:
    """Compiles to `folder`. `capability` is what device code sees: 75 takes the branches for Turing."""

    planted: ClassVar[Change] = staticmethod(_as_it_is)  # a fault in the sources of all emulators

    def __init__(self, folder: Path, *, capability: int = 89) -> None:
        self.folder, self.capability, self.seed = folder, capability, 0
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._guarded: list[tuple[weakref.ref[mmap.mmap], int, int]] = []

    @staticmethod
    def available() -> bool:
        """Whether this system has what the emulator needs."""
        return os.name == "posix" and shutil.which("g++") is not None

    def properties(self, device: torch.device) -> DeviceProperties:
        """A small GPU, so that few blocks fill it."""
        return DeviceProperties(self.capability, num_multiprocessors=4, max_shared_bytes=99 * 1024)

    def resolve(self, device: torch.device, family: str, name: str, shared_bytes: int, overlaps: bool) -> Launch:
        """The kernel of this name; compiles its family where that has not been done."""
        if shared_bytes > self.properties(device).max_shared_bytes:
            raise EmulatorError(f"{name} wants {shared_bytes} bytes of shared memory")
        if family not in self._libraries:
            self._libraries[family] = self.load(family, source_of_family(family, Emulator.planted))
        return self.launch_of(self._libraries[family], name, overlaps)

    def launch_of(self, library: ctypes.CDLL, name: str, overlaps: bool = False) -> Launch:
        """A kernel of a library that `load` returned."""
        kernel = library[name]
        kernel.restype = ctypes.c_char_p
        kernel.argtypes = [ctypes.c_char_p, *(ctypes.c_int,) * 6, ctypes.c_uint]

        def launch(grid: Grid, threads: int, shared_bytes: int, parameters: bytes) -> None:
            if overlaps:
                regions = self._regions()
                library.overlap_next_launch(regions, len(regions) // 2)
            error = kernel(parameters, len(parameters), *grid, threads, shared_bytes, self.seed)
            if error is not None:
                raise EmulatorError(f"{name}: {error.decode()}")

        return launch

    def guard(self, tensor: Tensor, *, constant: bool = False) -> Tensor:
        """A copy that ends where a page ends: nobody can touch the megabytes around its pages. In front of it: 0xff.

        `constant`: no kernel writes it, so that overlapping ones may read it before they have waited.
        """
        num_bytes = max(1, tensor.numel()) * tensor.element_size()
        size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        mapping = mmap.mmap(-1, size + 2 * GUARD_BYTES)
        mapping[GUARD_BYTES : GUARD_BYTES + size] = b"\xff" * size
        whole = torch.frombuffer(mapping, dtype=torch.uint8)
        for address in (whole.data_ptr(), whole.data_ptr() + GUARD_BYTES + size):
            _forbid(address, GUARD_BYTES)
        if not constant:
            self._guarded.append((weakref.ref(mapping), whole.data_ptr() + GUARD_BYTES, size))
        end = GUARD_BYTES + size
        copy = whole[end - num_bytes : end].view(tensor.dtype)[: tensor.numel()].view(tensor.shape)
        copy.copy_(tensor)
        return copy

    def _regions(self) -> ctypes.Array[ctypes.c_uint64]:
        """Address and size of each guarded tensor that still exists."""
        self._guarded = [guarded for guarded in self._guarded if guarded[0]() is not None]
        return (ctypes.c_uint64 * (2 * len(self._guarded)))(
            *(number for _, address, size in self._guarded for number in (address, size))
        )

    def load(self, name: str, source: str) -> ctypes.CDLL:
        """Compile a source, or take it from the folder."""
        options = (*OPTIONS, f"-D__CUDA_ARCH__={self.capability}0")
        digest = hashlib.sha256("\0".join((source, *options)).encode()).hexdigest()[:24]
        library = self.folder / f"{name}-{digest}.so"
        if not library.exists():
            target = library.with_suffix(f".{os.getpid()}")
            command = ["g++", *options, "-x", "c++", "-", "-o", str(target)]
            done = subprocess.run(command, input=source, capture_output=True, text=True, encoding="utf-8")
            if done.returncode:
                raise EmulatorError(f"g++ refuses {name}:\n{done.stderr[:4000]}")
            target.replace(library)
        return ctypes.CDLL(str(library))


def _forbid(address: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 0):
        raise OSError(ctypes.get_errno(), "mprotect failed")

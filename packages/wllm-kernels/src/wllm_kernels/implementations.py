"""What runs the ops in this process, and loading it ahead of need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from wllm_kernels.compiler.families import FAMILIES
from wllm_kernels.device import cuda_backend
from wllm_kernels.device.backend import Gpu
from wllm_kernels.device.kernel import Kernel
from wllm_kernels.dispatch import DEVICE_TYPES, OPS, REFERENCE_FORCED, Implementation
from wllm_kernels.errors import InvalidArgument, KernelError, UnsupportedByGpu


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What runs the ops: by device type and op; the GPUs with their code; or the reason why none runs device code."""

    implementations: Mapping[str, Mapping[str, Implementation]]
    gpus: tuple[Gpu, ...]
    problem: str | None

    @property
    def has_device_code(self) -> bool:
        """Whether any op runs compiled device code."""
        return any(name != "reference" for ops in self.implementations.values() for name in ops.values())


def capabilities() -> Capabilities:
    """The implementation of each op on the CPU and, if torch sees a GPU, on CUDA. Loads no kernel, never raises."""
    devices = DEVICE_TYPES if torch.cuda.is_available() else DEVICE_TYPES[:1]
    implementations = {device: {op.name: op.implementation_names[device] for op in OPS} for device in devices}
    if REFERENCE_FORCED:
        return Capabilities(implementations, (), "WLLM_KERNELS=reference is set; unset it to run device code")
    try:
        return Capabilities(implementations, tuple(cuda_backend.gpus()), None)
    except KernelError as error:
        return Capabilities(implementations, (), str(error))


def warmup(device: torch.device | str, families: Iterable[str] | None = None) -> int:
    """Load kernels, so that no launch on `device` has to, and return how many are loaded now.

    Call it before capturing a CUDA graph. `families` are names of kernel families, or patterns such as `*_bf16*`; None
    is all of them, a string one. Kernels that the GPU's generation cannot run are left out. There is nothing to load
    for the CPU. Raises `NoDeviceCode` with the reason, and `InvalidArgument` for a family that does not exist.
    """
    device, wanted = torch.device(device), _matching(families)
    if device.type == "cpu" or REFERENCE_FORCED:
        return 0
    if device.index is None:
        device = torch.device(device.type, torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return sum(_resolved(kernel, device) for kernel in Kernel.all if kernel.family in wanted)


def _matching(patterns: Iterable[str] | None) -> set[str]:
    names = [family.name for family in FAMILIES]
    found: set[str] = set()
    if isinstance(patterns, str):
        patterns = (patterns,)
    for pattern in ("*",) if patterns is None else patterns:
        matching = {name for name in names if fnmatchcase(name, pattern)}
        if not matching:
            raise InvalidArgument(f"no kernel family is called {pattern!r}; the families are {', '.join(names)}")
        found |= matching
    return found


def _resolved(kernel: Kernel, device: torch.device) -> bool:
    try:
        kernel.resolve(device)
    except UnsupportedByGpu:
        return False
    return True

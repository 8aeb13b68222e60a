"""A kernel as Python sees it: a name in a family, the layout of its parameters, and how it is launched.

The modules of `wllm_kernels.device` describe their kernels with this class and never touch the driver. What resolves
and launches them is a backend: the CUDA driver in the product, an emulator in the tests.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from wllm_kernels.errors import InvalidArgument

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What launch code may ask about a GPU."""

    capability: int  # times ten: 86
    num_multiprocessors: int
    max_shared_bytes: int  # of one block that asks for more than the default
    has_time_limit: bool = False  # the driver ends kernels that run too long, since a display may wait for the GPU


class Launch(Protocol):
    """A resolved kernel; runs it on torch's current stream of its device."""

    def __call__(self, grid: Grid, threads: int, shared_bytes: int, parameters: bytes) -> None: ...


class Backend(Protocol):
    """Resolves kernels for all devices of one type."""

    def properties(self, device: torch.device) -> DeviceProperties:
        """What this device is."""

    def resolve(self, device: torch.device, family: str, name: str, shared_bytes: int, overlaps: bool) -> Launch:
        """Load the kernel and allow it `shared_bytes` of shared memory; raises `KernelError` where it cannot run."""


class Backends:
    """The backend of each device type."""

    def __init__(self) -> None:
        self._by_type: dict[str, Backend] = {}

    def register(self, device_type: str, backend: Backend) -> None:
        """Use `backend` for devices of this type from now on; kernels that were resolved before are forgotten."""
        self._by_type[device_type] = backend
        for kernel in Kernel.all:
            kernel.forget()

    def __getitem__(self, device: torch.device) -> Backend:
        backend = self._by_type.get(device.type)
        if backend is None:
            raise InvalidArgument(
                f"device code does not run on {device}; pass CUDA tensors, or use wllm_kernels.reference"
            )
        return backend


class Kernel:
    """One kernel of a family. `layout` are its parameters in the letters of the module `struct`, 8-byte fields first.

    `overlaps`: it keeps the rule of `wait_for_previous_kernel` (primitives.cuh), so that it may begin before the kernel
    in front of it has ended. `launches` counts what was launched in this process, by this object.
    """

    all: ClassVar[list[Kernel]] = []

    def __init__(
        self, family: str, name: str, layout: str, threads: int, shared_bytes: int = 0, *, overlaps: bool = False
    ) -> None:
        self.family, self.name, self.threads, self.shared_bytes = family, name, threads, shared_bytes
        self.overlaps = overlaps
        self.launches = 0
        parameters = struct.Struct(f"<{layout}")
        self.parameter_bytes, self._pack = parameters.size, parameters.pack
        self._resolved: dict[torch.device, Launch] = {}
        Kernel.all.append(self)

    def resolve(self, device: torch.device) -> Launch:
        """Load it, so that no launch on `device` has to; needed before a graph capture."""
        launch = self._resolved.get(device)
        if launch is None:
            launch = backends[device].resolve(device, self.family, self.name, self.shared_bytes, self.overlaps)
            self._resolved[device] = launch
        return launch

    def forget(self) -> None:
        """Resolve anew at the next launch."""
        self._resolved.clear()

    def launch(self, device: torch.device, grid: Grid, *parameters: int | float) -> None:
        """Run a grid of blocks; tensors are passed as `data_ptr()`, a missing one as 0."""
        launch = self._resolved.get(device) or self.resolve(device)
        launch(grid, self.threads, self.shared_bytes, self._pack(*parameters))
        self.launches += 1


def launch_count() -> int:
    """How many kernels this process has launched; a launch that a CUDA graph captured counts once."""
    return sum(kernel.launches for kernel in Kernel.all)


backends = Backends()

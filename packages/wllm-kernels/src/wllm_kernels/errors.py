"""The exceptions of wllm-kernels. A message says what happened, the value seen and what to do about it.

KernelError
├── InvalidArgument (ValueError)    a tensor, option or environment variable that this package cannot work with
├── NoDeviceCode                    device code cannot run here
│   ├── NoDriver                    the NVIDIA driver's library is missing or finds no GPU
│   ├── NoCudaTorch                 torch is built without CUDA
│   ├── DriverTooOld                the driver cannot load the machine code
│   ├── NoKernel                    neither machine code nor a compiler for this GPU
│   └── UnsupportedByGpu            the GPU lacks what this kernel uses: bfloat16, FP8, shared memory
├── StaleContainer                  the machine code named by WLLM_KERNELS_CONTAINER is not of these sources
├── CompilationFailed               NVRTC refused the sources
└── DriverError                     a call of the driver failed
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of all errors of this package."""


class InvalidArgument(KernelError, ValueError):
    """An argument has a shape, dtype or value that the op does not accept; the message says which it takes."""


class NoDeviceCode(KernelError):
    """Device code cannot run in this process or on this GPU; base of the reasons why."""


class NoDriver(NoDeviceCode):
    """The library of the NVIDIA driver is missing, or the driver does not start."""


class NoCudaTorch(NoDeviceCode):
    """The installed torch is built without CUDA, or sees no GPU."""


class DriverTooOld(NoDeviceCode):
    """The NVIDIA driver is older than the machine code needs; the message names both versions."""


class NoKernel(NoDeviceCode):
    """No machine code for this GPU was found and none could be compiled; the message lists what was tried."""


class UnsupportedByGpu(NoDeviceCode):
    """The GPU's generation lacks what the kernel uses: bfloat16, FP8, or so much shared memory."""


class StaleContainer(KernelError):
    """The container that WLLM_KERNELS_CONTAINER names was built from other sources than those of this package."""


class CompilationFailed(KernelError):
    """NVRTC refused the kernel sources; the message holds the beginning of its log."""


class DriverError(KernelError):
    """A call of the CUDA driver failed; `result` is its number."""

    def __init__(self, message: str, result: int) -> None:
        super().__init__(message)
        self.result = result

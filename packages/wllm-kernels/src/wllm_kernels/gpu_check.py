"""Whether a GPU can run the kernels and torch's own, told before anything is loaded onto it.

Without this the first kernel would fail in the middle of a start, or torch's with "no kernel image is available".
"""

from __future__ import annotations

import re

import torch

from wllm_kernels.compiler.families import TARGETS
from wllm_kernels.device import cuda_backend
from wllm_kernels.device.code import capability_text
from wllm_kernels.dispatch import REFERENCE_FORCED
from wllm_kernels.errors import NoKernel, UnsupportedByGpu
from wllm_kernels.implementations import warmup

# Every model runs it, and it is small: where no code is packaged for the GPU, it is compiled in a second.
_FAMILY = "norm"


def check_gpu(device: torch.device) -> None:
    """Raise `NoDeviceCode` with the GPU's name, what there is code for and what to install, if it cannot run models.

    Loads one small kernel family. A CPU needs no check.
    """
    if device.type == "cpu":
        return
    name = torch.cuda.get_device_name(device)
    if not REFERENCE_FORCED:
        capability = cuda_backend.properties(device).capability
        if capability < min(TARGETS):
            raise UnsupportedByGpu(
                f"{name} has compute capability {capability_text(capability)}, and the kernels are for GPUs of "
                f"{capability_text(min(TARGETS))} (GeForce RTX 20 and GTX 16) and newer; use device='cpu'"
            )
        warmup(device, _FAMILY)
    major, minor = torch.cuda.get_device_capability(device)
    targets = torch.cuda.get_arch_list()
    if not _runs_any(targets, major, minor):
        raise NoKernel(
            f"torch {torch.__version__} has no code for {name} (compute capability {major}.{minor}): it has "
            f"{', '.join(targets)}. Install another CUDA build of torch with the command that "
            "https://pytorch.org/get-started/locally shows"
        )


def has_time_limit(device: torch.device) -> bool:
    """Whether the driver ends kernels that run too long on a GPU, as Windows does after 2 s; raises `NoDeviceCode`."""
    return device.type == "cuda" and not REFERENCE_FORCED and cuda_backend.properties(device).has_time_limit


def _runs_any(targets: list[str], major: int, minor: int) -> bool:
    """Whether a GPU runs machine code (sm_86, of one GPU sm_90a, of a family sm_100f) or PTX (compute_80) of a list."""
    known = [found.groups() for target in targets if (found := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", target))]
    for kind, code_major, code_minor, only in known:
        code = (int(code_major), int(code_minor))
        if code == (major, minor) or (only != "a" and code[0] == major and code[1] <= minor):
            return True
        if kind == "compute" and not only and code <= (major, minor):
            return True
    return not known

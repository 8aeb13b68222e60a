"""The NVIDIA driver, the GPUs, and whether there is code for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from wllm.console import size_text
from wllm.doctor.driver import MINIMUM_VERSION
from wllm.doctor.facts import Facts
from wllm.doctor.finding import Finding, Verdict

_GET_DRIVER = (
    "install a current driver from https://www.nvidia.com/drivers (R525 or newer; R570 for RTX 50, R580 for CUDA 13)"
)
_GET_KERNELS = (
    "bring driver, wllm-kernels and the CUDA build of torch up to date; wllm serve --device cpu does without the GPU"
)
_OLDEST = (7, 5)
# Below this part of its memory a GPU has too little left for a model worth running.
_LOW_PART = 0.5


def driver(facts: Facts) -> Iterator[Finding]:
    """It loads, starts, and is not older than what the kernels need."""
    found = facts.driver
    if not found.loaded:
        reason = "models run on the CPU; an NVIDIA GPU needs its driver"
        yield Finding(
            "NVIDIA driver", Verdict.NOTE, f"none: {found.problem}", reason, f"with an NVIDIA GPU: {_GET_DRIVER}"
        )
    elif found.version and found.version < MINIMUM_VERSION:
        seen, reason = f"CUDA {found.cuda}", "the kernels need CUDA 12.0 (driver R525) or newer"
        yield Finding("NVIDIA driver", Verdict.PROBLEM, seen, reason, _GET_DRIVER)
    elif found.problem:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        fix = "check that nvidia-smi lists a GPU; reboot after an update of the driver"
        if hidden is not None:
            fix = f"unset CUDA_VISIBLE_DEVICES, which is {hidden!r}; or {fix}"
        reason = "models run on the CPU, as if there were no GPU"
        yield Finding("NVIDIA driver", Verdict.WARNING, found.problem, reason, fix)
    else:
        yield Finding("NVIDIA driver", Verdict.OK, f"CUDA {found.cuda}, {len(found.gpus)} GPU(s)")


def gpus(facts: Facts) -> Iterator[Finding]:
    """Each is of a generation that the kernels support."""
    for index, gpu in enumerate(facts.driver.gpus):
        if gpu.capability < _OLDEST:
            reason = "the kernels are for compute capability 7.5 (GeForce RTX 20 and GTX 16) and newer"
            yield Finding(f"GPU {index}", Verdict.WARNING, str(gpu), reason, "wllm serve --device cpu")
        else:
            yield Finding(f"GPU {index}", Verdict.OK, str(gpu))


def gpu_memory(facts: Facts) -> Iterator[Finding]:
    """How much is free, and, on Windows, who manages it."""
    if not facts.driver.loaded:
        return
    columns = ["name", "memory.free", "memory.total", "driver_version"]
    columns += ["driver_model.current"] if sys.platform == "win32" else []
    for row in facts.smi(",".join(columns)):
        sizes = [row[name].split()[0] for name in ("memory.free", "memory.total")]
        if not all(size.isdecimal() for size in sizes):
            yield Finding("GPU memory", Verdict.NOTE, f"{row['name']}: nvidia-smi tells no sizes")
            continue
        free, total = (int(size) << 20 for size in sizes)
        seen = f"{row['name']}: {size_text(free)} of {size_text(total)} free, driver {row['driver_version']}"
        model = row.get("driver_model.current", "")
        seen += f", {model}" if model else ""
        if free < _LOW_PART * total:
            reason = "other programs hold the rest, and a model gets what is free"
            yield Finding(
                "GPU memory", Verdict.WARNING, seen, reason, "end programs that use the GPU; nvidia-smi lists them"
            )
        elif model == "WDDM":
            reason = "beyond the free memory Windows moves pages to main memory, ten times slower, and tells nobody"
            fix = "NVIDIA Control Panel, CUDA - Sysmem Fallback Policy: Prefer No Sysmem Fallback"
            yield Finding("GPU memory", Verdict.NOTE, seen, reason, fix)
        else:
            yield Finding("GPU memory", Verdict.OK, seen)


def kernels(facts: Facts) -> Iterator[Finding]:
    """There is code for each GPU that torch sees. A torch without CUDA is the affair of its own check."""
    found = facts.torch
    if not found.cuda:
        if found.version and not facts.driver.gpus:
            yield Finding("kernels", Verdict.OK, "plain torch on the CPU")
    elif found.problem and facts.driver.gpus:
        # With the reference alone models run, slowly.
        verdict = Verdict.WARNING if found.gpus else Verdict.PROBLEM
        yield Finding("kernels", verdict, found.problem, "no kernel runs on the GPU", _GET_KERNELS)
    elif not found.gpus:
        yield Finding("kernels", Verdict.NOTE, "torch sees no GPU", "models run on the CPU, with plain torch")
    for index, gpu in enumerate(found.gpus):
        name = f"kernels, GPU {index}"
        if gpu.problem:
            yield Finding(name, Verdict.PROBLEM, gpu.problem, f"no model can run on {gpu.name}", _GET_KERNELS)
        else:
            origin = ", ".join(gpu.code) or "the reference"
            yield Finding(name, Verdict.OK, f"{gpu.name} runs them: {origin}")

"""What a GPU has for KV blocks: the free memory less what else an engine needs, term by term.

Pure arithmetic, but for the measurement in `FreeMemory.of`. `gpu_memory.py` finds the figures.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

import torch

from wllm_runtime import nvml
from wllm_runtime.dxgi import Adapter
from wllm_runtime.memory import MIB, KVBudget
from wllm_runtime.settings import SettingRow

# What CUDA and others may still take while the engine runs. Under WDDM the desktop needs more, and more on a larger
# card: with a flat 512 MiB, cards of 12 GB were seen to be filled so far that Windows moved pages out.
_RESERVE_BYTES = 256 * MIB
_WDDM_RESERVE_BYTES, _WDDM_RESERVE_SHARE = 512 * MIB, 1 / 16
GPU_MEMORY_FIX = (
    "close other programs on the GPU, raise gpu_memory_utilization, lower max_num_batched_tokens (activations, graphs) "
    "or max_num_seqs, or use a smaller model"
)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes of a device: all, and free by the driver, by NVML and by DXGI (None: it gave no figure)."""

    total: int
    driver: int
    nvml: int | None
    dxgi: int | None = None

    @property
    def free(self) -> int:
        """The lowest of the figures."""
        return min(figure for figure in (self.driver, self.nvml, self.dxgi) if figure is not None)

    @classmethod
    def of(cls, device: torch.device, adapter: Adapter | None) -> FreeMemory:
        """Measure now; starts CUDA in this process, whose own memory is then no longer free."""
        driver, total = torch.cuda.mem_get_info(device)
        by_nvml = nvml.free_memory(str(torch.cuda.get_device_properties(device).uuid))
        return cls(total, driver, by_nvml, None if adapter is None else adapter.free_memory())

    @property
    def figures(self) -> str:
        """The figures in words; DXGI is on Windows only."""
        by_nvml = "NVML gives no figure" if self.nvml is None else f"NVML says {self.nvml // MIB:,}"
        by_dxgi = "" if self.dxgi is None else f", DXGI says {self.dxgi // MIB:,}"
        return f"the driver says {self.driver // MIB:,}, {by_nvml}{by_dxgi}"


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that an engine takes beside its KV cache. `cuda` is what CUDA took outside of torch: code, handles."""

    weights: int
    activations: int
    tables: int
    graphs: int
    cuda: int

    @property
    def total(self) -> int:
        """Their sum."""
        return self.weights + self.activations + self.tables + self.graphs + self.cuda

    def __str__(self) -> str:
        return ", ".join(f"{name} {size // MIB:,}" for name, size in dataclasses.asdict(self).items())


def reserve(total: int, platform: str = sys.platform) -> int:
    """Bytes of a device of `total` bytes that stay free."""
    return max(_WDDM_RESERVE_BYTES, int(total * _WDDM_RESERVE_SHARE)) if platform == "win32" else _RESERVE_BYTES


def device_budget(free: FreeMemory, needs: Needs, utilization: float) -> KVBudget:
    """What is left for KV blocks of `utilization` of the free memory, and never more than leaves the reserve."""
    hard = free.free - reserve(free.total)
    usable = min(int(free.free * utilization), hard)
    terms = {
        "weights": "the model's parameters",
        "activations": "measured: the largest step",
        "tables": "state of the slots and of the sampler",
        "graphs": "estimated: CUDA graphs",
        "cuda": "measured: code and libraries",
    }
    rows: list[SettingRow] = [
        (
            "memory: free",
            mib(free.free),
            f"of {mib(free.total)} when the engine started; {free.figures}",
        ),
        (
            "memory: usable",
            mib(usable),
            f"{utilization:.0%} of it (gpu_memory_utilization)"
            if usable < hard
            else f"all but {mib(reserve(free.total))}, which stay free for the display and the driver",
        ),
        *((f"memory: {name}", mib(-size), terms[name]) for name, size in dataclasses.asdict(needs).items()),
        ("memory: kv", mib(usable - needs.total), "what is left for KV blocks"),
    ]
    reason = f"{usable // MIB:,} MiB of {free.free // MIB:,} free, less {needs}"
    return KVBudget(usable - needs.total, reason, GPU_MEMORY_FIX, hard - needs.total, tuple(rows))


def mib(num_bytes: int) -> str:
    """The text of a size."""
    return f"{round(num_bytes / MIB):,} MiB"

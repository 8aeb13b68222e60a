"""`GpuMemory`: the memory of one GPU for one engine, from before its weights to after its graphs.

Measures what is free, keeps torch from taking more (Windows would move the excess to host memory without a word, ten
times slower), finds what the engine needs beside its KV cache, and holds the finished engine to the plan (I19).
Used by `create_engine` while it starts, on CUDA only.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from wllm_runtime import dxgi
from wllm_runtime.errors import OutOfMemory
from wllm_runtime.gpu_budget import FreeMemory, Needs, device_budget, mib, reserve
from wllm_runtime.memory import MIB, KVBudget, MemoryPlan
from wllm_runtime.settings import SettingRow
from wllm_runtime.spill import SpillWatch

# Not as where a plan fails: the share of the KV cache is no help before it is there, and in the way afterwards.
_FIX = (
    "close other programs on the GPU, lower max_num_batched_tokens (activations, graphs), max_num_seqs or "
    "gpu_memory_utilization (KV cache), or use a smaller model"
)
# Rounding of allocations: a plan that is exceeded by less is kept.
_SLACK_BYTES = 64 * MIB


class GpuMemory:
    """The memory of `device` from now on: everything that is taken later counts as this engine's."""

    def __init__(self, device: torch.device, utilization: float) -> None:
        self._device, self._utilization = device, utilization
        self._needs = Needs(0, 0, 0, 0, 0)
        gc.collect()  # an engine that failed to start may lie about
        torch.cuda.empty_cache()
        adapter = dxgi.open_adapter(device.index)
        self._spill = SpillWatch(adapter)
        self.at_start = FreeMemory.of(device, adapter)
        self._reserved_at_start = torch.cuda.memory_reserved(device)
        # What this process holds already (another engine) is not free and not this engine's.
        most = self._reserved_at_start + self.at_start.free - reserve(self.at_start.total)
        torch.cuda.set_per_process_memory_fraction(min(max(most / self.at_start.total, 0.0), 1.0), device)

    def expect(self, weights: int) -> None:
        """Raise `OutOfMemory` before anything is loaded where `weights` bytes of parameters cannot fit."""
        left = self.at_start.free - reserve(self.at_start.total)
        if weights > left:
            raise OutOfMemory(
                f"the model's weights take {weights / MIB:,.0f} MiB, and the GPU has {self.at_start.free / MIB:,.0f} "
                f"MiB free, of which {reserve(self.at_start.total) / MIB:,.0f} MiB stay free; close other programs on "
                "the GPU, or use a smaller model"
            )

    def held(self) -> int:
        """Bytes that torch holds for this engine now, without cached free ones."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device) - self._reserved_at_start

    def outside_of_torch(self) -> int:
        """Bytes that CUDA took on the device since the start beside what torch holds, as far as the driver tells."""
        taken = self.at_start.driver - torch.cuda.mem_get_info(self._device)[0]
        return max(0, taken - (torch.cuda.memory_reserved(self._device) - self._reserved_at_start))

    def peak_of(self, step: Callable[[], None]) -> int:
        """Bytes that torch takes at the peak of `step` above what it holds; raises `OutOfMemory`."""
        before = self.held()
        torch.cuda.reset_peak_memory_stats(self._device)
        with self.out_of_memory_means("the largest step does not fit"):
            step()
            torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - self._reserved_at_start - before

    @contextmanager
    def out_of_memory_means(self, what: str) -> Iterator[None]:
        """Turn torch's error into an `OutOfMemory` that says `what` happened, the numbers and the fix."""
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            held = torch.cuda.memory_reserved(self._device) - self._reserved_at_start
            raise OutOfMemory(
                f"{what}: {self.at_start.free / MIB:,.0f} MiB were free on the GPU, {held / MIB:,.0f} MiB are in use; "
                f"{_FIX}"
            ) from error

    def release(self) -> None:
        """When the engine is gone: give back what torch holds for nobody, and let it take what it likes again."""
        gc.collect()  # graphs know their runner, and it knows them
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)
        self._spill.close()

    def spilled(self) -> int:
        """Bytes that Windows has moved to host memory since the engine was ready and first asked; 0 elsewhere."""
        return self._spill.num_bytes()

    def budget(self, needs: Needs) -> KVBudget:
        """What is left for KV blocks of an engine with these needs."""
        self._needs = needs
        return device_budget(self.at_start, needs, self._utilization)

    def check(self, plan: MemoryPlan) -> tuple[SettingRow, str | None]:
        """I19, when everything is allocated: a row with what is used, and a warning if that exceeds the plan."""
        self._spill.begin(torch.cuda.memory_reserved(self._device))
        planned = self._needs.total + plan.kv_bytes
        used = self.held() + self.outside_of_torch() + self._needs.activations
        row = ("memory: used", mib(used), f"measured, with room for activations; {mib(planned)} were planned")
        if used <= planned + _SLACK_BYTES:
            return row, None
        return row, (
            f"I19: the engine takes {used / MIB:,.0f} MiB of GPU memory, and {planned / MIB:,.0f} MiB were planned "
            f"({self._needs}, KV cache {plan.kv_bytes // MIB:,}); if it runs out, lower gpu_memory_utilization or "
            "set enforce_eager"
        )

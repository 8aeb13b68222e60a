"""A GPU that only counts, for tests of memory where there is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from wllm_runtime import dxgi, nvml


class CountingAdapter:
    """What DXGI says on Windows: the budget left, and the host memory held."""

    def __init__(self, free: int) -> None:
        self.free, self.own, self.held = free, 1 << 40, 0
        self.open = True

    def free_memory(self) -> int:
        return self.free

    def own_memory(self) -> int:
        return self.own

    def host_memory(self) -> int:
        return self.held

    def close(self) -> None:
        self.open = False


class CountingDevice:
    """Counts bytes as torch's allocator and the driver would; `others` belong to other programs.

    `budget` is what Windows grants beyond what is held, None for a system without DXGI.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, total: int, others: int = 0, budget: int | None = None) -> None:
        self.total, self.others = total, others
        self.outside = self.reserved = self.cached = self.peak = 0
        self.fraction = 1.0
        self.adapter = None if budget is None else CountingAdapter(budget)
        for name in (
            "mem_get_info",
            "memory_reserved",
            "max_memory_reserved",
            "reset_peak_memory_stats",
            "empty_cache",
            "set_per_process_memory_fraction",
            "synchronize",
        ):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="11-22"))
        monkeypatch.setattr(nvml, "free_memory", lambda uuid: None)
        monkeypatch.setattr(dxgi, "open_adapter", lambda index: self.adapter)

    def take(self, num_bytes: int) -> None:
        self.reserved += num_bytes
        self.peak = max(self.peak, self.reserved)
        if self.reserved > self.fraction * self.total:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self.total - self.others - self.outside - self.reserved, self.total

    def memory_reserved(self, device: torch.device) -> int:
        return self.reserved

    def max_memory_reserved(self, device: torch.device) -> int:
        return self.peak

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peak = self.reserved

    def empty_cache(self) -> None:
        self.reserved -= self.cached
        self.cached = 0

    def set_per_process_memory_fraction(self, fraction: float, device: torch.device) -> None:
        self.fraction = fraction

    def synchronize(self, device: torch.device) -> None:
        pass


@pytest.fixture
def counting_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CountingDevice]:
    """Makes a device of `total` bytes, of which other programs hold `others`, and puts it in torch's place."""
    return partial(CountingDevice, monkeypatch)

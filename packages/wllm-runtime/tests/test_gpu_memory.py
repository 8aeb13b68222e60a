"""The memory of a GPU, on a device that only counts: what is free, what is needed, and what is held to the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch

from wllm_runtime import OutOfMemory
from wllm_runtime.config import EngineConfig
from wllm_runtime.gpu_budget import FreeMemory, Needs, device_budget, reserve
from wllm_runtime.gpu_memory import GpuMemory
from wllm_runtime.memory import MIB, MemoryPlan, plan_memory

Make: TypeAlias = Callable[..., Any]

GIB = 1 << 30
CUDA = torch.device("cuda", 0)
NEEDS = Needs(weights=1000 * MIB, activations=300 * MIB, tables=50 * MIB, graphs=400 * MIB, cuda=100 * MIB)


def plan_over(gpu: GpuMemory, needs: Needs) -> MemoryPlan:
    config = EngineConfig(model="any")
    return plan_memory(config, gpu.budget(needs), bytes_per_token=2**14, context_len=2**17, max_num_seqs=64)


@pytest.mark.parametrize(
    ("platform", "total_gib", "mib"), [("linux", 12, 256), ("linux", 141, 256), ("win32", 8, 512), ("win32", 12, 768)]
)
def test_the_reserve_of_a_desktop_is_larger(platform: str, total_gib: int, mib: int) -> None:
    assert reserve(total_gib * GIB, platform) == mib * MIB


def test_the_lowest_figure_counts() -> None:
    assert FreeMemory(total=10, driver=8, nvml=None).free == 8
    assert FreeMemory(total=10, driver=8, nvml=6).free == 6
    assert FreeMemory(total=10, driver=5, nvml=6).free == 5
    assert FreeMemory(total=10, driver=5, nvml=6, dxgi=4).free == 4
    assert FreeMemory(total=10, driver=8, nvml=None, dxgi=9).free == 8
    assert FreeMemory(total=10, driver=8, nvml=7, dxgi=0).free == 0


def test_the_figures_are_told() -> None:
    free = FreeMemory(total=12000 * MIB, driver=11000 * MIB, nvml=10000 * MIB, dxgi=9500 * MIB)
    row = device_budget(free, NEEDS, 0.9).rows[0]
    assert row[1] == "9,500 MiB"
    assert row[2].endswith("the driver says 11,000, NVML says 10,000, DXGI says 9,500")


def test_the_budget_is_a_share_of_what_is_free_less_all_needs() -> None:
    free = FreeMemory(total=12000 * MIB, driver=11000 * MIB, nvml=10000 * MIB)
    budget = device_budget(free, NEEDS, 0.9)
    assert budget.num_bytes == (9000 - NEEDS.total // MIB) * MIB == 7150 * MIB
    assert budget.limit == free.free - reserve(free.total) - NEEDS.total
    assert [(name, value) for name, value, _ in budget.rows] == [
        ("memory: free", "10,000 MiB"),
        ("memory: usable", "9,000 MiB"),
        ("memory: weights", "-1,000 MiB"),
        ("memory: activations", "-300 MiB"),
        ("memory: tables", "-50 MiB"),
        ("memory: graphs", "-400 MiB"),
        ("memory: cuda", "-100 MiB"),
        ("memory: kv", "7,150 MiB"),
    ]
    assert "the driver says 11,000, NVML says 10,000" in budget.rows[0][2]


def test_the_whole_of_a_gpu_leaves_the_reserve() -> None:
    free = FreeMemory(total=12000 * MIB, driver=10000 * MIB, nvml=None)
    budget = device_budget(free, NEEDS, 1.0)
    assert budget.num_bytes == budget.limit == free.free - reserve(free.total) - NEEDS.total
    assert "stay free for the display" in budget.rows[1][2]


def test_torch_may_take_what_is_free_less_the_reserve(counting_device: Make) -> None:
    device = counting_device(total=12 * GIB, others=2 * GIB)
    device.reserved = GIB  # another engine of this process
    gpu = GpuMemory(CUDA, 0.9)
    assert gpu.at_start == FreeMemory(12 * GIB, 9 * GIB, None)
    assert device.fraction * device.total == pytest.approx(10 * GIB - reserve(12 * GIB))
    gpu.release()
    assert device.fraction == 1.0


def test_windows_budget_counts_and_spilled_memory_is_seen(counting_device: Make) -> None:
    device = counting_device(total=12 * GIB, budget=7 * GIB)
    gpu = GpuMemory(CUDA, 0.9)
    assert gpu.at_start == FreeMemory(12 * GIB, 12 * GIB, None, 7 * GIB)
    assert device.fraction * device.total == pytest.approx(7 * GIB - reserve(12 * GIB))
    device.adapter.held = GIB  # pinned while it loads
    assert gpu.spilled() == 0
    gpu.release()
    assert not device.adapter.open


def test_weights_that_cannot_fit_are_refused_before_they_are_loaded(counting_device: Make) -> None:
    counting_device(total=12 * GIB, others=2 * GIB)
    gpu = GpuMemory(CUDA, 0.9)
    gpu.expect(9 * GIB)
    with pytest.raises(OutOfMemory, match=r"weights take 15,360 MiB, and the GPU has 10,240 MiB free"):
        gpu.expect(15 * GIB)


def test_what_is_held_and_what_a_step_takes(counting_device: Make) -> None:
    device = counting_device(total=12 * GIB)
    gpu = GpuMemory(CUDA, 0.9)
    device.take(GIB)
    device.outside = 100 * MIB

    def step() -> None:
        device.take(300 * MIB)
        device.cached = 300 * MIB

    assert gpu.peak_of(step) == 300 * MIB
    assert gpu.held() == GIB
    assert gpu.outside_of_torch() == 100 * MIB


def test_a_step_that_does_not_fit_names_the_numbers(counting_device: Make) -> None:
    device = counting_device(total=12 * GIB)
    gpu = GpuMemory(CUDA, 0.9)
    with pytest.raises(OutOfMemory, match=r"12,288 MiB were free .* 13,312 MiB are in use; close other programs"):
        gpu.peak_of(lambda: device.take(13 * GIB))


@pytest.mark.parametrize(("graphs_mib", "warns"), [(400, False), (450, False), (600, True)])
def test_the_engine_is_held_to_its_plan(counting_device: Make, graphs_mib: int, warns: bool) -> None:
    device = counting_device(total=12 * GIB)
    gpu = GpuMemory(CUDA, 0.9)
    plan = plan_over(gpu, NEEDS)
    device.take(NEEDS.weights + NEEDS.tables + plan.kv_bytes + graphs_mib * MIB)
    device.outside = NEEDS.cuda
    row, warning = gpu.check(plan)
    planned = (NEEDS.total + plan.kv_bytes) / MIB
    assert row[:2] == ("memory: used", f"{planned + graphs_mib - 400:,.0f} MiB")
    assert (warning is not None) == warns
    if warning is not None:
        assert warning.startswith("I19: ")
        assert f"{planned:,.0f} MiB were planned" in warning


def test_memory_that_was_moved_while_the_engine_loaded_is_seen(
    counting_device: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wllm_runtime.spill._INTERVAL_S", 0.0)
    device = counting_device(total=12 * GIB, budget=11 * GIB)
    gpu = GpuMemory(CUDA, 0.9)
    plan = plan_over(gpu, NEEDS)
    device.take(4 * GIB)
    device.adapter.own, device.adapter.held = 3 * GIB, 2 * GIB  # half of what is in host memory is pinned
    gpu.check(plan)
    assert gpu.spilled() == GIB

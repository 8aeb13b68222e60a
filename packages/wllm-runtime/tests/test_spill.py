"""Memory that Windows moves to the host is noticed, told once, and counted."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from wllm_runtime.dxgi import Adapter
from wllm_runtime.memory import MIB
from wllm_runtime.spill import SpillWatch


class Host:
    """An adapter's host memory, and the clock."""

    def __init__(self) -> None:
        self.held: int | None = 300 * MIB
        self.own: int | None = 5000 * MIB
        self.now = 0.0
        self.num_asked = self.num_closed = 0

    def watch(self) -> SpillWatch:
        return SpillWatch(cast(Adapter, self), lambda: self.now)

    def own_memory(self) -> int | None:
        return self.own

    def host_memory(self) -> int | None:
        self.num_asked += 1
        return self.held

    def close(self) -> None:
        self.num_closed += 1


def after_a_second(host: Host, watch: SpillWatch, held: int | None) -> int:
    host.held = held
    host.now += 1.0
    return watch.num_bytes()


def test_what_is_pinned_at_the_start_is_no_spill_and_what_comes_later_is(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    watch = host.watch()
    with caplog.at_level(logging.WARNING):
        assert watch.num_bytes() == 0
        assert after_a_second(host, watch, 310 * MIB) == 10 * MIB
        assert not caplog.messages
        assert after_a_second(host, watch, 800 * MIB) == 500 * MIB
        assert after_a_second(host, watch, 300 * MIB) == 0
        assert after_a_second(host, watch, 900 * MIB) == 600 * MIB
    (told,) = caplog.messages
    assert told.startswith("Windows has moved 500 MiB of the engine's GPU memory to host memory")
    assert "lower gpu_memory_utilization" in told


@pytest.mark.parametrize(("taken", "spilled"), [(4000, 0), (5000, 0), (5100, 100), (9000, 300)])
def test_what_was_moved_before_counts(taken: int, spilled: int, caplog: pytest.LogCaptureFixture) -> None:
    """5000 are on the GPU and 300 in host memory: of what is missing on the GPU, at most that was moved."""
    host = Host()
    watch = host.watch()
    watch.begin(taken * MIB)
    assert after_a_second(host, watch, 300 * MIB) == spilled * MIB
    assert len(caplog.messages) == (spilled > 0)
    assert after_a_second(host, watch, 350 * MIB) == (spilled + 50) * MIB


def test_a_beginning_without_a_figure_is_the_first_look() -> None:
    host = Host()
    watch = host.watch()
    host.own = None
    watch.begin(9000 * MIB)
    assert after_a_second(host, watch, 300 * MIB) == 0
    SpillWatch(None).begin(1)


def test_the_least_is_what_counts() -> None:
    """An engine that had spilled when it was ready, and whose memory came back."""
    host = Host()
    watch = host.watch()
    assert watch.num_bytes() == 0
    assert after_a_second(host, watch, 100 * MIB) == 0
    assert after_a_second(host, watch, 130 * MIB) == 30 * MIB


def test_windows_is_asked_once_a_second() -> None:
    host = Host()
    watch = host.watch()
    for _ in range(30):
        host.now += 0.125
        watch.num_bytes()
    assert host.num_asked == 4


def test_without_a_figure_the_last_one_stays() -> None:
    host = Host()
    watch = host.watch()
    watch.num_bytes()
    assert after_a_second(host, watch, 320 * MIB) == 20 * MIB
    assert after_a_second(host, watch, None) == 20 * MIB


def test_the_adapter_is_given_back_once_and_not_asked_again() -> None:
    host = Host()
    watch = host.watch()
    watch.num_bytes()
    after_a_second(host, watch, 320 * MIB)
    watch.close()
    watch.close()
    assert after_a_second(host, watch, 900 * MIB) == 20 * MIB
    assert (host.num_asked, host.num_closed) == (2, 1)


def test_elsewhere_nothing_spills() -> None:
    watch = SpillWatch(None)
    assert watch.num_bytes() == 0
    watch.close()

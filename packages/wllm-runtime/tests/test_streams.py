"""Steps run in order, results come with `wait`, and on CUDA nothing else waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from wllm_runtime.streams import CudaStream, WorkerStream


def test_worker_runs_steps_in_order_beside_the_caller() -> None:
    stream, gate, order = WorkerStream(), threading.Event(), []

    def step(number: int) -> Callable[[], int]:
        if number == 0:
            gate.wait(10)
        order.append(number)
        return lambda: number * 10

    handles = [stream.submit(lambda number=number: step(number)) for number in range(3)]
    assert order == []
    gate.set()
    assert [handle.wait() for handle in handles] == [0, 10, 20] and order == [0, 1, 2]
    assert handles[0].wait() == 0
    stream.close()


def test_worker_raises_at_the_wait() -> None:
    stream = WorkerStream()

    def step() -> Callable[[], int]:
        raise ArithmeticError("in the step")

    handle = stream.submit(step)
    with pytest.raises(ArithmeticError, match="in the step"):
        handle.wait()
    stream.close()


class FakeEvent:
    """Notes what happens to it in `log`."""

    log: list[str]
    made = 0

    def __init__(self, *, blocking: bool) -> None:
        self.name = f"{'sleep' if blocking else 'spin'} {FakeEvent.made}"
        FakeEvent.made += 1

    def record(self) -> None:
        FakeEvent.log.append(f"record {self.name}")

    def synchronize(self) -> None:
        FakeEvent.log.append(f"wait {self.name}")


@pytest.mark.parametrize(("spin", "name"), [(True, "spin"), (False, "sleep")])
def test_cuda_waits_for_the_event_of_the_step_only(spin: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeEvent.log, FakeEvent.made = [], 0
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    stream = CudaStream(2, spin)
    assert FakeEvent.made == 3  # none is made for a step

    def step(number: int) -> Callable[[], int]:
        FakeEvent.log.append(f"launch {number}")
        return lambda: number

    first, second = stream.submit(lambda: step(0)), stream.submit(lambda: step(1))
    assert FakeEvent.log == ["launch 0", f"record {name} 0", "launch 1", f"record {name} 1"]
    assert first.wait() == 0
    assert FakeEvent.log[4:] == [f"wait {name} 0"]
    third, fourth = stream.submit(lambda: step(2)), stream.submit(lambda: step(3))
    assert [second.wait(), third.wait(), fourth.wait()] == [1, 2, 3]
    assert FakeEvent.log[-1] == f"wait {name} 0"  # of the first step, which is over

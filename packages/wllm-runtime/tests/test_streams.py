"""Steps run in order, results come with `wait`, and on CUDA nothing else waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class FakeCuda:
    """Devices, and which of them and of their streams the calling thread uses; streams are named after their device."""

    device: int = 0
    streams: dict[int, str] = field(default_factory=lambda: {0: "0 default", 1: "1 default"})
    log: list[str] = field(default_factory=list)

    def current_stream(self, device: torch.device | None = None) -> Any:
        index = self.device if device is None else device.index
        return FakeStream(torch.device("cuda", index), self.streams[index])

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        before, self.device = self.device, device.index
        yield
        self.device = before

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        assert stream.device.index == self.device
        before, self.streams[self.device] = self.streams[self.device], stream.name
        yield
        self.streams[self.device] = before

    def synchronize(self, device: torch.device | None = None) -> None:
        self.log.append(f"synchronize {self.device if device is None else device.index}")

    @property
    def current(self) -> tuple[int, str]:
        return self.device, self.streams[self.device]


@dataclass
class FakeStream:
    """A stream's device and name."""

    device: torch.device
    name: str


class FakeEvent:
    """Notes what happens to it in `log`."""

    log: list[str]
    made = 0

    def __init__(self, *, blocking: bool) -> None:
        self.name = f"{'sleep' if blocking else 'spin'} {FakeEvent.made}"
        FakeEvent.made += 1

    def record(self, stream: FakeStream) -> None:
        FakeEvent.log.append(f"record {self.name} in {stream.name}")

    def synchronize(self) -> None:
        FakeEvent.log.append(f"wait {self.name}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """torch.cuda as far as streams use it."""
    fake = FakeCuda()
    FakeEvent.log, FakeEvent.made = [], 0
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "device", fake.on)
    for name in ("current_stream", "stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


@pytest.mark.parametrize(("spin", "name"), [(True, "spin"), (False, "sleep")])
def test_cuda_waits_for_the_event_of_the_step_only(spin: bool, name: str, cuda: FakeCuda) -> None:
    stream = CudaStream(torch.device("cuda", 0), 2, spin)
    assert FakeEvent.made == 3  # none is made for a step

    def step(number: int) -> Callable[[], int]:
        FakeEvent.log.append(f"launch {number}")
        return lambda: number

    first, second = stream.submit(lambda: step(0)), stream.submit(lambda: step(1))
    assert FakeEvent.log == [
        "launch 0",
        f"record {name} 0 in 0 default",
        "launch 1",
        f"record {name} 1 in 0 default",
    ]
    assert first.wait() == 0
    assert FakeEvent.log[4:] == [f"wait {name} 0"]
    third, fourth = stream.submit(lambda: step(2)), stream.submit(lambda: step(3))
    assert [second.wait(), third.wait(), fourth.wait()] == [1, 2, 3]
    assert FakeEvent.log[-1] == f"wait {name} 0"  # of the first step, which is over


def test_cuda_steps_keep_to_their_stream_whatever_is_current(cuda: FakeCuda) -> None:
    """A caller in another thread, where GPU 0 is current, and one who calls inside torch.cuda.stream."""
    cuda.device = 1
    stream = CudaStream(torch.device("cuda", 1), 2, spin=True)
    seen: list[tuple[int, str]] = []

    def step() -> Callable[[], int]:
        seen.append(cuda.current)
        return lambda: 7

    for device, user_stream in ((0, "1 default"), (1, "1 of the user"), (0, "1 of the user")):
        cuda.device, cuda.streams[1] = device, user_stream
        caller = cuda.current
        assert stream.submit(step).wait() == 7
        assert cuda.current == caller
        assert cuda.streams[1] == user_stream
    assert seen == [(1, "1 default")] * 3
    records = [line for line in FakeEvent.log if line.startswith("record")]
    assert len(records) == 3 and all(line.endswith("in 1 default") for line in records)
    cuda.device = 0
    stream.close()
    assert cuda.log == ["synchronize 1"]

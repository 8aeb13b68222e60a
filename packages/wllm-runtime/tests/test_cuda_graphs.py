"""What `CudaGraphs` does before it needs a GPU."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from wllm_runtime.cuda_graphs import CudaGraphs


def test_streams_are_used_again_but_never_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            made.append(self)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    device = torch.device("cuda", 7)
    first, second = CudaGraphs(device), CudaGraphs(device)
    assert len(made) == 2
    CudaGraphs(torch.device("cuda", 8))
    assert len(made) == 3
    del first, second
    third, fourth, fifth = CudaGraphs(device), CudaGraphs(device), CudaGraphs(device)
    assert len(made) == 4
    assert len({id(graphs._stream) for graphs in (third, fourth, fifth)}) == 3


@pytest.mark.parametrize("told", [False, True])
def test_the_allocator_is_told_of_the_end_of_a_broken_capture(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    ended: list[tuple[int, tuple[int, int]]] = []

    class Graph:
        def capture_begin(self, **options: object) -> None:
            pass

        def capture_end(self) -> None:
            raise RuntimeError("the capture is invalid")

    def end(device: int, pool: tuple[int, int]) -> None:
        ended.append((device, pool))
        if told:
            raise RuntimeError("not recording to this pool")

    work = iter([None, ValueError("spoilt")])

    def run() -> None:
        if (error := next(work)) is not None:
            raise error

    for name, value in {
        "Stream": lambda device: None,
        "graph_pool_handle": lambda: (0, 5),
        "CUDAGraph": Graph,
        "synchronize": lambda device: None,
        "stream": lambda stream: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    with pytest.raises(ValueError, match="spoilt"):
        CudaGraphs(torch.device("cuda", 6)).capture(run)
    assert ended == [(6, (0, 5))]

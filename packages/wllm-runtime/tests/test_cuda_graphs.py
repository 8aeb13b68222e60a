"""What `CudaGraphs` does before it needs a GPU."""

from __future__ import annotations

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

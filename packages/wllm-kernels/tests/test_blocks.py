"""Copies of whole blocks against indexing."""

from __future__ import annotations

import pytest
import torch

from wllm_kernels import InvalidArgument, copy_blocks, swap_blocks


def test_chained_copies_read_before_they_write(device: str) -> None:
    kv = torch.randn(5, 2, 1, 4, 8, device=device)
    before = kv.clone()
    copy_blocks(kv, torch.tensor([[0, 1], [1, 2], [4, 0]], device=device))
    assert torch.equal(kv, before[[4, 0, 1, 3, 4]])


def test_copy_into_a_strided_cache(device: str) -> None:
    layers = torch.randn(4, 3, 2, 1, 4, 8, device=device)
    before = layers.clone()
    copy_blocks(layers[:, 1], torch.tensor([[0, 3]], device=device))
    assert torch.equal(layers[3, 1], before[0, 1])
    assert torch.equal(layers[:, ::2], before[:, ::2]) and torch.equal(layers[:3], before[:3])


def test_no_copies(device: str) -> None:
    kv = torch.randn(2, 2, 1, 4, 8, device=device)
    before = kv.clone()
    copy_blocks(kv, torch.empty(0, 2, dtype=torch.int64, device=device))
    assert torch.equal(kv, before)


@pytest.mark.parametrize("to_host", [True, False])
def test_swap_blocks(device: str, to_host: bool) -> None:
    kv = torch.randn(4, 3, 2, 1, 4, 8, device=device)[:, 1]
    host = torch.randn(3, 2, 1, 4, 8, pin_memory=device == "cuda")
    old_kv, old_host = kv.cpu(), host.clone()
    swap_blocks(kv, host, torch.tensor([[3, 0], [1, 2]], device=device), to_host=to_host)
    if device == "cuda":
        torch.cuda.synchronize()
    if to_host:
        assert torch.equal(kv.cpu(), old_kv)
        assert torch.equal(host, torch.stack((old_kv[3], old_host[1], old_kv[1])))
    else:
        assert torch.equal(host, old_host)
        assert torch.equal(kv.cpu(), torch.stack((old_kv[0], old_host[2], old_kv[2], old_host[0])))


def test_float8_blocks(device: str) -> None:
    kv = torch.randn(3, 2, 1, 4, 8, device=device).to(torch.float8_e4m3fn)
    before = kv.clone()
    copy_blocks(kv, torch.tensor([[0, 2]], device=device))
    assert torch.equal(kv[2].view(torch.uint8), before[0].view(torch.uint8))


def test_blocks_in_pieces_are_refused() -> None:
    kv = torch.randn(4, 2, 8, 4).transpose(2, 3)
    with pytest.raises(InvalidArgument, match="pass a tensor whose blocks are contiguous"):
        copy_blocks(kv, torch.tensor([[0, 1]]))


def test_host_of_another_block_shape() -> None:
    with pytest.raises(InvalidArgument, match=r"host has shape \[3, 8\]; pass a tensor of shape \[any, 4\]"):
        swap_blocks(torch.zeros(2, 4), torch.zeros(3, 8), torch.zeros(1, 2, dtype=torch.int64), to_host=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")
def test_ordinary_host_memory_is_refused() -> None:
    kv, pairs = torch.zeros(2, 4, device="cuda"), torch.zeros(1, 2, dtype=torch.int64, device="cuda")
    with pytest.raises(InvalidArgument, match="allocate it with pin_memory=True"):
        swap_blocks(kv, torch.zeros(2, 4), pairs, to_host=True)


def test_blocks_in_shared_memory_are_refused() -> None:
    kv = torch.zeros(1, 2, 1, 4, 8).expand(3, -1, -1, -1, -1)
    with pytest.raises(InvalidArgument, match=r"kv has strides \(0, .* share no memory"):
        copy_blocks(kv, torch.tensor([[0, 1]]))

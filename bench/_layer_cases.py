"""Cases of what moves memory: norm, rotary embedding with the cache write, activation, block copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from _attention_cases import BLOCK_SIZE, LLAMA_8B, Heads, Row
from _gpu import Call, Gpu
from torch import Tensor

from wllm_kernels import act_mul, copy_blocks, rms_norm, rope_kv_write, swap_blocks

MEGABYTES = (4, 16, 64, 256)
QUICK_MEGABYTES = (4, 64)
HIDDEN, INTERMEDIATE = 4096, 14336  # of Llama-3.1-8B
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Pass:
    """A call that moves `moved` bytes, read and written, and torch's way to do the same."""

    name: str
    moved: int
    call: Call
    baseline: Call | None = None


def bandwidth(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """Kernels that pass once over their data: against the peak of a copy, a copy of as many bytes, and torch."""
    for megabytes in QUICK_MEGABYTES if quick else MEGABYTES:
        size = megabytes << 20
        same_size = gpu.time_copy(size).median
        for make in (norm_pass, residual_norm_pass, rope_pass, activation_pass, copy_blocks_pass):
            case = make(gpu, size)
            ours = gpu.time(case.call, gpu.copies(size))
            row: Row = {
                "kernel": case.name,
                "MB moved": case.moved / 1e6,
                "us": ours.median * 1e6,
                "low us": ours.low * 1e6,
                "GB/s": case.moved / ours.median / 1e9,
                "of copy": case.moved / ours.median / gpu.copy_bandwidth,
                "of a copy this size": same_size * case.moved / size / ours.median,
            }
            if case.baseline is not None:
                theirs = gpu.time(case.baseline, gpu.copies(size)).median
                row |= {"torch us": theirs * 1e6, "x torch": theirs / ours.median}
            yield row


def swap(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """Blocks between the device and pinned host memory, against torch's copy of as many contiguous bytes."""
    blocks = 256 if quick else 1024
    kv = torch.empty(blocks, 2, LLAMA_8B.keys, BLOCK_SIZE, LLAMA_8B.dim, dtype=torch.bfloat16, device="cuda").normal_()
    host = torch.empty(kv.shape, dtype=kv.dtype, pin_memory=True)
    pairs = torch.stack([torch.randperm(blocks, device="cuda") for _ in range(2)], 1)
    size = kv.numel() * kv.element_size()
    for name, to_host in (("device to host", True), ("host to device", False)):
        ours = gpu.time(partial(_swap, kv, host, pairs, to_host))
        theirs = gpu.time(partial(_copy, host, kv) if to_host else partial(_copy, kv, host))
        yield {
            "direction": name,
            "blocks": blocks,
            "MB": size / 1e6,
            "us": ours.median * 1e6,
            "GB/s": size / ours.median / 1e9,
            "torch GB/s": size / theirs.median / 1e9,
        }


def _swap(kv: Tensor, host: Tensor, pairs: Tensor, to_host: bool, _: int) -> None:
    swap_blocks(kv, host, pairs, to_host=to_host)


def _copy(target: Tensor, source: Tensor, _: int) -> None:
    target.copy_(source, non_blocking=True)


def norm_pass(gpu: Gpu, size: int) -> Pass:
    """RMS norm of [rows, 4096]: one read, one write."""
    x = _random(gpu.copies(size), max(size // (4 * HIDDEN), 1), HIDDEN)
    weight = _random(HIDDEN)
    return Pass(
        f"rms_norm {x.shape[1]} x {HIDDEN}",
        4 * x[0].numel(),
        lambda i: rms_norm(x[i], weight, EPS),
        lambda i: F.rms_norm(x[i], (HIDDEN,), weight, EPS),
    )


def residual_norm_pass(gpu: Gpu, size: int) -> Pass:
    """RMS norm of [rows, 4096] with the residual: two reads, two writes."""
    x = _random(gpu.copies(size), max(size // (8 * HIDDEN), 1), HIDDEN)
    residual, weight = torch.zeros_like(x), _random(HIDDEN)
    return Pass(
        f"rms_norm + residual {x.shape[1]} x {HIDDEN}",
        8 * x[0].numel(),
        lambda i: rms_norm(x[i], weight, EPS, residual[i]),
        lambda i: F.rms_norm(residual[i].add_(x[i]), (HIDDEN,), weight, EPS),
    )


def rope_pass(gpu: Gpu, size: int) -> Pass:
    """Rotary embedding and cache write: q, k and v read, all three written."""
    heads = LLAMA_8B
    width = (heads.queries + 2 * heads.keys) * heads.dim
    tokens = max(size // (4 * width) // BLOCK_SIZE, 1) * BLOCK_SIZE
    write = RopeWrite(heads, tokens, gpu.copies(size))
    return Pass(f"rope_kv_write {tokens} tokens", 4 * width * tokens, write)


class RopeWrite:
    """Rotary embedding of one prompt, written to shuffled blocks, with its own cache and `qkv` for each copy."""

    def __init__(self, heads: Heads, tokens: int, copies: int) -> None:
        self.heads = heads
        blocks = -(-tokens // BLOCK_SIZE)
        self.qkv = _random(copies, tokens, (heads.queries + 2 * heads.keys) * heads.dim)
        self.kv = torch.empty(copies, blocks, 2, heads.keys, BLOCK_SIZE, heads.dim, dtype=torch.bfloat16, device="cuda")
        self.positions = torch.arange(tokens, device="cuda")
        self.cos_sin = torch.randn(tokens, heads.dim, device="cuda")
        offsets = torch.arange(BLOCK_SIZE, device="cuda")
        self.cells = (torch.randperm(blocks, device="cuda")[:, None] * BLOCK_SIZE + offsets).flatten()[:tokens]
        self.cells = self.cells.contiguous()

    def __call__(self, copy: int) -> Tensor:
        return rope_kv_write(
            self.qkv[copy], self.positions, self.cos_sin, self.kv[copy], self.cells,
            num_heads=self.heads.queries, num_kv_heads=self.heads.keys,
        )  # fmt: skip


def activation_pass(gpu: Gpu, size: int) -> Pass:
    """SiLU(gate) * up: two reads, one write."""
    x = _random(gpu.copies(size), max(size // (6 * INTERMEDIATE), 1), 2 * INTERMEDIATE)

    def baseline(copy: int) -> Tensor:
        gate, up = x[copy].chunk(2, -1)
        return F.silu(gate) * up

    return Pass(f"act_mul {x.shape[1]} x {INTERMEDIATE}", 3 * x[0].numel(), lambda i: act_mul(x[i], "silu"), baseline)


def copy_blocks_pass(gpu: Gpu, size: int) -> Pass:
    """Whole blocks copied to others: one read, one write."""
    block = 2 * LLAMA_8B.keys * BLOCK_SIZE * LLAMA_8B.dim
    count = max(size // (4 * block), 1)
    kv = _random(gpu.copies(size), 2 * count, 2, LLAMA_8B.keys, BLOCK_SIZE, LLAMA_8B.dim)
    pairs = torch.randperm(2 * count, device="cuda").view(count, 2)
    return Pass(f"copy_blocks {count} blocks", 4 * block * count, lambda i: copy_blocks(kv[i], pairs))


def _random(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()

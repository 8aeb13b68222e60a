"""The checks, an op or a group of ops each, and what came of them. A check that fails keeps no other from running."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch

from wllm_kernels import capabilities
from wllm_kernels.device.kernel import launch_count
from wllm_kernels.selfcheck.agreement import (
    FP8,
    Mask,
    Rotation,
    Shape,
    check_activation,
    check_attention,
    check_linear,
    check_norm,
    check_rope,
)
from wllm_kernels.selfcheck.agreement_tokens import (
    check_copy_blocks,
    check_logprobs,
    check_sample,
    check_step,
    check_swap_blocks,
)

LENGTHS, COUNTS = [1, 40, 0, 100, 33, 150], [1, 1, 1, 70, 5, 1]
HALF = (torch.bfloat16, torch.float16)
ALL = (torch.float32, *HALF)


def attention_decode(device: str) -> None:
    """One query a row, or few."""
    for dtype in HALF:
        for dim in (64, 80, 96, 128, 256):
            check_attention(device, Shape(4, 2, dim, dtype=dtype), Mask(), [1, 70, 300], [1, 1, 3])
    check_attention(device, Shape(14, 2, 64), Mask(window=40, softcap=5.0), [1, 70, 300], [1, 1, 3])
    # Long enough for several splits of one row.
    check_attention(device, Shape(4, 1, 128), Mask(), [3000], [1])


def attention_mixed(device: str) -> None:
    """Prompts and decodes side by side."""
    for dtype in HALF:
        for dim in (64, 80, 96, 128, 256):
            check_attention(device, Shape(4, 2, dim, dtype=dtype), Mask(), LENGTHS, COUNTS, spare=2)
    check_attention(device, Shape(14, 2, 64, block=32), Mask(window=40, softcap=5.0), LENGTHS, COUNTS)
    check_attention(device, Shape(4, 2, 128), Mask(causal=False), LENGTHS, COUNTS)


def attention_quantised(device: str) -> None:
    """Over caches of 8 bits."""
    for cache in _quantised(device):
        for dim in (64, 80, 96, 128, 256):
            check_attention(device, Shape(4, 2, dim, cache=cache), Mask(), LENGTHS, COUNTS)
        check_attention(device, Shape(4, 2, 128, dtype=torch.float16, cache=cache), Mask(window=40), LENGTHS, COUNTS)


def attention_float32(device: str) -> None:
    """The plain kernel, for dtypes and sizes that no other takes."""
    for dim in (8, 64):
        check_attention(device, Shape(4, 2, dim, dtype=torch.float32), Mask(), LENGTHS, COUNTS, spare=2)
    check_attention(device, Shape(4, 2, 16, 8, torch.float32), Mask(window=40, softcap=5.0), LENGTHS, COUNTS)


def norm(device: str) -> None:
    """RMS norm."""
    for dtype in ALL:
        for size in (7, 576, 4096, 9000):
            check_norm(device, dtype, 3, size, residual=size % 2 == 0, offset=float(size % 3 == 0))


def activation(device: str) -> None:
    """Gated activations."""
    for dtype in ALL:
        check_activation(device, dtype, 3, 333, "silu")
        check_activation(device, dtype, 2, 1024, "gelu")
        check_activation(device, dtype, 2, 1024, "gelu_tanh")


def linear(device: str) -> None:
    """Products of few tokens."""
    for dtype in HALF:
        for tokens in (1, 8, 13):
            check_linear(device, dtype, tokens, 200, 328, "silu")
        check_linear(device, dtype, 3, 2050, 2120, "gelu")


def rope(device: str) -> None:
    """Rotation, and the write into the cache."""
    for dtype in ALL:
        for cache in (None, *_quantised(device)):
            check_rope(device, Shape(4, 2, 64, dtype=dtype, cache=cache), Rotation(64), 9)
            check_rope(device, Shape(4, 2, 128, dtype=dtype, cache=cache), Rotation(64, True, True), 9)


def step(device: str) -> None:
    """What prepares a step and what ends it."""
    for seed in range(4):
        check_step(device, seed, num_rows=9)


def blocks(device: str) -> None:
    """Copies of blocks, and to the host and back."""
    for dtype in (torch.bfloat16, torch.int8):
        check_copy_blocks(device, dtype, 7)
        check_copy_blocks(device, dtype, 20)
        check_swap_blocks(device, dtype, 7)


def sample(device: str) -> None:
    """Tokens."""
    for dtype in ALL:
        for filters in (False, True):
            check_sample(device, dtype, 5, 3000, filters=filters, edits=filters)


def logprobs(device: str) -> None:
    """Log-probabilities and ranks."""
    for dtype in ALL:
        check_logprobs(device, dtype, 3, 3000, 5)


def _quantised(device: str) -> list[torch.dtype]:
    if device == "cpu":
        return [torch.int8, FP8]
    # What the code can do: WLLM_KERNELS_TARGET may set it below what the GPU can.
    fp8 = any("e4m3" in family for family in capabilities().gpus[torch.cuda.current_device()].code)
    return [torch.int8, *([FP8] if fp8 else [])]


CHECKS: tuple[Callable[[str], None], ...] = (
    attention_decode, attention_mixed, attention_quantised, attention_float32, norm, activation, linear, rope,
    step, blocks, sample, logprobs,
)  # fmt: skip
NAMES = tuple(check.__name__ for check in CHECKS)


@dataclass(frozen=True, slots=True)
class Result:
    """A check that ran: the kernels that it launched, its time in seconds, and why it failed, else empty."""

    name: str
    launches: int
    seconds: float
    error: str


def run_checks(device: str = "cuda", names: Collection[str] = NAMES) -> Iterator[Result]:
    """Run the named checks on the CPU, or on torch's current GPU; a result each, as soon as it is there."""
    if not __debug__:
        raise RuntimeError("the checks are assertions, which python -O leaves out: run it without, PYTHONOPTIMIZE too")
    for check in CHECKS:
        if check.__name__ in names:
            yield _run(check, device)


def _run(check: Callable[[str], None], device: str) -> Result:
    torch.manual_seed(0)
    launches, start, error = launch_count(), perf_counter(), ""
    try:
        check(device)
        if device != "cpu":
            torch.cuda.synchronize()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    launches = launch_count() - launches
    if not error and not launches and device != "cpu":
        error = "no kernel was launched: the reference ran on the GPU"
    return Result(check.__name__, launches, perf_counter() - start, error)

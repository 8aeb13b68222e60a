"""Every op at small shapes on the GPU against the reference, as a program: for compute-sanitizer and other code paths.

python exercise.py                                        what this GPU runs
WLLM_KERNELS_TARGET=compute_80 python exercise.py         what the driver compiles from PTX
compute-sanitizer --tool racecheck python exercise.py     races between the threads of a block
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from time import perf_counter

import torch
from agreement import (
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
from agreement_tokens import check_copy_blocks, check_logprobs, check_sample, check_step, check_swap_blocks

from wllm_kernels import capabilities
from wllm_kernels.device.kernel import launch_count

LENGTHS, COUNTS = [1, 40, 0, 100, 33, 150], [1, 1, 1, 70, 5, 1]
HALF = (torch.bfloat16, torch.float16)
ALL = (torch.float32, *HALF)


def attention_decode() -> None:
    for dtype in HALF:
        for dim in (64, 80, 96, 128, 256):
            check_attention("cuda", Shape(4, 2, dim, dtype=dtype), Mask(), [1, 70, 300], [1, 1, 3])
    check_attention("cuda", Shape(14, 2, 64), Mask(window=40, softcap=5.0), [1, 70, 300], [1, 1, 3])
    # Long enough for several splits of one row.
    check_attention("cuda", Shape(4, 1, 128), Mask(), [3000], [1])


def attention_mixed() -> None:
    for dtype in HALF:
        for dim in (64, 80, 96, 128, 256):
            check_attention("cuda", Shape(4, 2, dim, dtype=dtype), Mask(), LENGTHS, COUNTS, spare=2)
    check_attention("cuda", Shape(14, 2, 64, block=32), Mask(window=40, softcap=5.0), LENGTHS, COUNTS)
    check_attention("cuda", Shape(4, 2, 128), Mask(causal=False), LENGTHS, COUNTS)


def attention_quantised() -> None:
    for cache in _quantised():
        for dim in (64, 80, 96, 128, 256):
            check_attention("cuda", Shape(4, 2, dim, cache=cache), Mask(), LENGTHS, COUNTS)
        check_attention("cuda", Shape(4, 2, 128, dtype=torch.float16, cache=cache), Mask(window=40), LENGTHS, COUNTS)


def attention_float32() -> None:
    for dim in (8, 64):
        check_attention("cuda", Shape(4, 2, dim, dtype=torch.float32), Mask(), LENGTHS, COUNTS, spare=2)
    check_attention("cuda", Shape(4, 2, 16, 8, torch.float32), Mask(window=40, softcap=5.0), LENGTHS, COUNTS)


def norm() -> None:
    for dtype in ALL:
        for size in (7, 576, 4096, 9000):
            check_norm("cuda", dtype, 3, size, residual=size % 2 == 0, offset=float(size % 3 == 0))


def activation() -> None:
    for dtype in ALL:
        check_activation("cuda", dtype, 3, 333, "silu")
        check_activation("cuda", dtype, 2, 1024, "gelu")
        check_activation("cuda", dtype, 2, 1024, "gelu_tanh")


def linear() -> None:
    for dtype in HALF:
        for tokens in (1, 8, 13):
            check_linear("cuda", dtype, tokens, 200, 328, "silu")
        check_linear("cuda", dtype, 3, 2050, 2120, "gelu")


def rope() -> None:
    for dtype in ALL:
        for cache in (None, *_quantised()):
            check_rope("cuda", Shape(4, 2, 64, dtype=dtype, cache=cache), Rotation(64), 9)
            check_rope("cuda", Shape(4, 2, 128, dtype=dtype, cache=cache), Rotation(64, True, True), 9)


def step() -> None:
    for seed in range(4):
        check_step("cuda", seed, num_rows=9)


def blocks() -> None:
    for dtype in (torch.bfloat16, torch.int8):
        check_copy_blocks("cuda", dtype, 7)
        check_copy_blocks("cuda", dtype, 20)
        check_swap_blocks("cuda", dtype, 7)


def sample() -> None:
    for dtype in ALL:
        for filters in (False, True):
            check_sample("cuda", dtype, 5, 3000, filters=filters, edits=filters)


def logprobs() -> None:
    for dtype in ALL:
        check_logprobs("cuda", dtype, 3, 3000, 5)


def _quantised() -> list[torch.dtype]:
    # What the code can do: WLLM_KERNELS_TARGET may set it below what the GPU can.
    fp8 = any("e4m3" in family for family in capabilities().gpus[torch.cuda.current_device()].code)
    return [torch.int8, *([FP8] if fp8 else [])]


CHECKS: tuple[Callable[[], None], ...] = (
    attention_decode, attention_mixed, attention_quantised, attention_float32, norm, activation, linear, rope,
    step, blocks, sample, logprobs,
)  # fmt: skip


def main() -> int:
    names = [check.__name__ for check in CHECKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=names, metavar="name", help=f"of {', '.join(names)}")
    wanted = parser.parse_args().names
    for gpu in capabilities().gpus:
        print(f"{gpu.name}, driver {gpu.driver}")
        print("code:", ", ".join(sorted(set(gpu.code.values()))))
    failed = []
    for check in CHECKS:
        if check.__name__ not in wanted:
            continue
        torch.manual_seed(0)
        launches, start, result = launch_count(), perf_counter(), "agrees"
        try:
            check()
            torch.cuda.synchronize()
        except Exception as error:
            result = f"FAILED: {type(error).__name__}: {error}"
        launches = launch_count() - launches
        if result != "agrees" or not launches:
            failed.append(check.__name__)
        print(f"{check.__name__:20} {launches:4} launches {perf_counter() - start:6.1f} s  {result}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all agree")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

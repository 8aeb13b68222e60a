"""The checks as a program, for compute-sanitizer and for other ways to machine code; exit code 1 where one fails.

python -m wllm_kernels.selfcheck                                        what this GPU runs
WLLM_KERNELS_TARGET=compute_80 python -m wllm_kernels.selfcheck         what the driver compiles from PTX
compute-sanitizer --tool racecheck python -m wllm_kernels.selfcheck     races between the threads of a block
"""

from __future__ import annotations

import argparse
import sys

import torch

from wllm_kernels import capabilities
from wllm_kernels.selfcheck.checks import NAMES, run_checks


def main() -> int:
    """Run those that are named, or all, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="name", help=f"of {', '.join(NAMES)}")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in NAMES]:
        parser.error(f"there is no check called {unknown[0]!r}; choose from {', '.join(NAMES)}")
    if not torch.cuda.is_available():
        raise SystemExit(
            f"torch {torch.__version__} sees no NVIDIA GPU, so there is nothing to check; wllm doctor says why"
        )
    for gpu in capabilities().gpus:
        print(f"{gpu.name}, driver {gpu.driver}")  # noqa: T201
        print("code:", ", ".join(sorted(set(gpu.code.values()))))  # noqa: T201
    failed = []
    for result in run_checks(names=args.names):
        failed += [result.name] if result.error else []
        seen = f"FAILED: {result.error}" if result.error else "agrees"
        print(f"{result.name:20} {result.launches:4} launches {result.seconds:6.1f} s  {seen}", flush=True)  # noqa: T201
    print(f"failed: {', '.join(failed)}" if failed else "all agree")  # noqa: T201
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

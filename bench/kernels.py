"""Every kernel of wllm-kernels on the GPU of this machine: against measured copy bandwidth and against torch's own.

Each fraction and ratio compares two times of this run; results of several runs are never mixed. Times are of CUDA-graph
replays between events: the median of the repeats, after a warm-up, with buffers that rotate over more than four times
the L2. `WLLM_KERNELS_TARGET=compute_80` (or --target) times the code that the driver compiles from compute_80 PTX.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from _common import machine, print_table

if TYPE_CHECKING:
    from _gpu import Gpu

Section = Callable[["Gpu", bool], Iterator[dict[str, object]]]
NAMES = ("decode", "prefill", "linear", "bandwidth", "swap", "latency", "sampling", "logprobs", "launch")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="sections to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and repeats")
    parser.add_argument("--repeats", type=int, help="timed replays of each graph (default: 25; 9 with --quick)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--target", help="device code to run instead of the GPU's own, such as compute_80")
    parser.add_argument("--no-overlap", action="store_true", help="no kernel begins before the last one has ended")
    args = parser.parse_args()
    if args.target is not None:
        os.environ["WLLM_KERNELS_TARGET"] = args.target

    import torch

    if not torch.cuda.is_available():
        print("bench/kernels.py: skipped, torch sees no NVIDIA GPU.")
        return 0
    from _gpu import Gpu

    from wllm_kernels.device.backend import CudaBackend
    from wllm_kernels.device.kernel import backends

    backends.register("cuda", CudaBackend(overlap=not args.no_overlap))
    torch.manual_seed(0)
    gpu = Gpu.open(args.repeats or (9 if args.quick else 25))
    facts = _facts(gpu, args.target) | {"launches overlap": not args.no_overlap}
    print("\n".join(f"{name}: {_cell(value)}" for name, value in facts.items()))
    results: dict[str, object] = {"facts": facts}
    failed = False
    for name in args.only:
        rows, error = _run(_sections()[name], gpu, args.quick)
        results[name] = rows
        if rows:
            header = list(dict.fromkeys(key for row in rows for key in row))
            print_table(name, header, [[_cell(row.get(key, "")) for key in header] for row in rows])
        if error is not None:
            print(f"{name} stopped: {error}\n", flush=True)
            results[f"{name} error"], failed = error, True
        if args.json is not None:  # after every section, so that an interrupted run leaves what it has
            args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def _sections() -> dict[str, Section]:
    from _attention_cases import decode, prefill
    from _layer_cases import bandwidth, swap
    from _linear_cases import linears
    from _sampling_cases import log_probabilities, sampling
    from _step_cases import latency, launch

    functions = decode, prefill, linears, bandwidth, swap, latency, sampling, log_probabilities, launch
    return dict(zip(NAMES, functions, strict=True))


def _run(section: Section, gpu: Gpu, quick: bool) -> tuple[list[dict[str, object]], str | None]:
    """The rows of a section, and what stopped it: the sections behind it can still run."""
    rows: list[dict[str, object]] = []
    try:
        for row in section(gpu, quick):
            rows.append(row)
            print(".", end="", file=sys.stderr, flush=True)
    except Exception as error:
        return rows, f"{type(error).__name__}: {error}"
    return rows, None


def _facts(gpu: Gpu, target: str | None) -> dict[str, object]:
    import torch

    from wllm_kernels import capabilities

    return {
        "GPU": torch.cuda.get_device_name(gpu.device),
        "machine": machine(),
        "target": target or "the GPU's own",
        "device code": capabilities().has_device_code,
        "copy GB/s": gpu.copy_bandwidth / 1e9,
        "L2 MB": gpu.l2_bytes / 1e6,
        "repeats": gpu.repeats,
    }


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())

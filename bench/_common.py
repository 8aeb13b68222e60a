"""What the benchmarks share: the model, timing, and the table they print."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter

from wllm.default_model import default_model

MODEL = default_model().model


def timed(work: Callable[..., object], *args: object) -> float:
    """Seconds that `work(*args)` takes."""
    start = perf_counter()
    work(*args)
    return perf_counter() - start


def spread(values: Sequence[float]) -> str:
    """Median, and the range of the runs."""
    return f"{statistics.median(values):,.2f} ({min(values):,.2f} to {max(values):,.2f})"


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A Markdown table under a title."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (*cells, list(header))) for i in range(len(header))]
    print(f"\n{title}\n")
    for row in (list(header), ["-" * width for width in widths], *cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print(flush=True)


def machine() -> str:
    """The machine in a line."""
    import torch

    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{system}, torch {torch.__version__}, {torch.get_num_threads()} threads"

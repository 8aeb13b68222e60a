"""Reading weights: MB a second from a safetensors file into a model's tensors, ours against safetensors' own reader.

The file is synthetic, with the shapes of a small model in bfloat16, and lies in a temporary folder (`--folder` names
another disk). "cached" reads what the system holds in memory, "uncached" what it was told to forget (Linux only).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from _common import machine, print_table, spread, timed
from safetensors import safe_open
from safetensors.torch import save_file

from wllm_runtime.checkpoint.safetensors_reader import SafetensorsReader

HIDDEN, WIDE = 2048, 8192
DTYPES = (torch.bfloat16, torch.float32)
Reader = Callable[[Path, dict[str, torch.Tensor]], None]


def write_model(folder: Path, gib: float) -> Path:
    """A file of layers of seven tensors, about `gib` GiB."""
    shapes: dict[str, tuple[int, ...]] = {
        "q": (HIDDEN, HIDDEN),
        "o": (HIDDEN, HIDDEN),
        "gate": (WIDE, HIDDEN),
        "up": (WIDE, HIDDEN),
        "down": (HIDDEN, WIDE),
        "norm": (HIDDEN,),
        "mlp_norm": (HIDDEN,),
    }
    layer_bytes = sum(2 * torch.Size(shape).numel() for shape in shapes.values())
    tensors = {
        f"{layer}.{name}": torch.randn(shape, dtype=torch.bfloat16)
        for layer in range(max(1, round(gib * 2**30 / layer_bytes)))
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def ours(file: Path, targets: dict[str, torch.Tensor]) -> None:
    SafetensorsReader(file.parent).read_into(targets, lambda _: None)


def by_position(file: Path, targets: dict[str, torch.Tensor]) -> None:
    copy_all(safe_open(file, framework="pt", backend="pread"), targets)


def mapped(file: Path, targets: dict[str, torch.Tensor]) -> None:
    copy_all(safe_open(file, framework="pt"), targets)


def copy_all(opened: safe_open, targets: dict[str, torch.Tensor]) -> None:
    with opened as handle:
        for name in handle.offset_keys():
            targets[name].copy_(handle.get_tensor(name))


READERS: dict[str, Reader] = {"wLLM": ours, "safetensors, read": by_position, "safetensors, mapped": mapped}


def forget(file: Path) -> None:
    """Have the system drop its copy of the file."""
    if sys.platform == "linux":
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(read: Reader, file: Path, targets: dict[str, torch.Tensor], cached: bool, repeats: int) -> list[float]:
    """MB a second of each repeat."""

    def work() -> None:
        read(file, targets)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    speeds = []
    work()
    for _ in range(repeats):
        if not cached:
            forget(file)
        speeds.append(file.stat().st_size / 1e6 / timed(work))
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the file (default: 1)")
    parser.add_argument("--repeats", type=int, default=3, help="reads of each kind (default: 3)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where tensors lie")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure (default: the temporary one)")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        file = write_model(Path(folder), args.gib)
        header = SafetensorsReader(file.parent)
        for dtype in DTYPES:
            targets = {
                name: torch.empty(header.shape(name), dtype=dtype, device=args.device) for name in header.names()
            }
            for cached in (True, False) if sys.platform == "linux" else (True,):
                for name, read in READERS.items():
                    speed = spread(measure(read, file, targets, cached, args.repeats))
                    rows.append((str(dtype).removeprefix("torch."), "cached" if cached else "uncached", name, speed))
        size = file.stat().st_size / 1e9
    print_table(
        f"MB/s from a bfloat16 file of {size:.2f} GB to {args.device}, median of {args.repeats} (range); {machine()}",
        ("into", "file", "reader", "MB/s"),
        rows,
    )


if __name__ == "__main__":
    main()

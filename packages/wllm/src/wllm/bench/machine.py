"""`Machine`: on what a figure was measured. Two figures may be divided only when their machines are the same.

Standard library only: the GPU is asked for through nvidia-smi, which every driver brings, on Windows too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of a machine. `identity` is a hash of the GPUs' serial ids, without a GPU of the host's name and CPU."""

    identity: str
    gpus: tuple[str, ...]
    driver: str | None
    cpu: str
    num_cpus: int
    system: str
    python: str
    torch: str | None

    @classmethod
    def here(cls) -> Machine:
        """This machine. WSL2 and its Windows host see the same GPU, so they are one machine."""
        gpus = _gpus()
        cpu = _cpu_name()
        own = [gpu["uuid"] for gpu in gpus] or [platform.node(), cpu, str(os.cpu_count())]
        return cls(
            identity=hashlib.sha256("\n".join(own).encode()).hexdigest()[:16],
            gpus=tuple(
                f"{gpu['name']}, {gpu['memory.total']}, {gpu['power.limit']}, {gpu['clocks.max.sm']}" for gpu in gpus
            ),
            driver=gpus[0]["driver_version"] if gpus else None,
            cpu=cpu,
            num_cpus=os.cpu_count() or 1,
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            torch=_version_of("torch"),
        )

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Machine:
        """Read what `to_json` wrote."""
        return cls(**{**facts, "gpus": tuple(facts["gpus"])})

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    def is_same_as(self, other: Machine) -> bool:
        """Whether a ratio of figures from both means something: same hardware, whatever software runs on it."""
        return self.identity == other.identity

    def __str__(self) -> str:
        hardware = [*self.gpus, f"driver {self.driver}"] if self.gpus else ["no NVIDIA GPU"]
        return "; ".join(
            [*hardware, f"{self.cpu}, {self.num_cpus} CPUs", self.system, f"Python {self.python}, torch {self.torch}"]
        )


def gpu_memory_used() -> int:
    """Bytes in use on all GPUs by all processes; 0 without a GPU."""
    return sum(int(gpu["memory.used"].split()[0]) << 20 for gpu in query_gpus("memory.used"))


def _gpus() -> list[dict[str, str]]:
    return query_gpus("name,uuid,driver_version,memory.total,power.limit,clocks.max.sm")


def query_gpus(names: str) -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU, by the names of its columns; empty without a driver."""
    # Nothing where the driver is not loaded: such a machine has no GPU that could be used.
    lines = _output_of("nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
    return [dict(zip(names.split(","), row, strict=True)) for row in rows]


def _cpu_name() -> str:
    for line in _output_of("lscpu").splitlines():  # Linux; what Python knows of the CPU there is its architecture
        if line.startswith("Model name:"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _output_of(program: str, *arguments: str) -> str:
    path = shutil.which(program)
    if path is None:
        return ""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, encoding="utf-8", errors="replace", timeout=30, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

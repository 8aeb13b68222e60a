"""`Facts`: what several checks ask, found once, when it is first asked for."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from wllm.bench.machine import query_gpus
from wllm.doctor.driver import Driver, ask_driver
from wllm.doctor.torch_probe import ANSWER

_PROBE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class TorchGpu:
    """A GPU that torch sees, where the kernels' code for it comes from, and why it cannot run models, else empty."""

    name: str
    problem: str = ""
    code: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Torch:
    """The installed torch: its version, the CUDA version it is built for, its GPUs.

    `error` tells why it cannot be imported, `problem` why there are no kernels for it. All empty: not installed.
    """

    version: str = ""
    cuda: str | None = None
    error: str = ""
    problem: str = ""
    gpus: tuple[TorchGpu, ...] = ()


class Facts:
    """Asks the machine. The arguments are what tests replace."""

    def __init__(
        self,
        *,
        port: int = 8000,
        driver: Callable[[], Driver] = ask_driver,
        torch: Callable[[], Torch] | None = None,
        smi: Callable[[str], list[dict[str, str]]] = query_gpus,
    ) -> None:
        """`port` is the one that `wllm serve` would take; `smi` asks nvidia-smi for columns."""
        self.port, self.smi = port, smi
        self._driver, self._torch = driver, torch or ask_torch

    @cached_property
    def driver(self) -> Driver:
        """The NVIDIA driver."""
        return self._driver()

    @cached_property
    def torch(self) -> Torch:
        """The installed torch."""
        return self._torch()


def ask_torch() -> Torch:
    """Import torch in another process and take its answer; never raises for a torch that is missing or broken."""
    if importlib.util.find_spec("torch") is None:
        return Torch()
    # -P: a folder called torch where the command was given is none that the server would import.
    command = [sys.executable, "-P", "-X", "utf8", "-W", "ignore", "-m", "wllm.doctor.torch_probe"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return Torch(error=f"importing it took more than {_PROBE_SECONDS} s")
    answers = [line.removeprefix(ANSWER) for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if done.returncode or not answers:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Torch(error=f"the process that imports it ended with code {done.returncode} {last}".strip())
    answer: dict[str, Any] = json.loads(answers[-1])
    gpus = tuple(TorchGpu(**gpu) for gpu in answer.pop("gpus", ()))
    return Torch(**answer, gpus=gpus)

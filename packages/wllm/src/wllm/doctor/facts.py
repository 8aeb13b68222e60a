"""`Facts`: what several checks ask, found once, when it is first asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from wllm.bench.machine import query_gpus
from wllm.doctor.driver import Driver, ask_driver
from wllm.doctor.probe import ask

# A virus scanner may read all of torch when it is imported for the first time.
_TORCH_SECONDS = 120
# Where there is no machine code for a GPU the driver or NVRTC compiles every kernel first.
_KERNELS_SECONDS = 600


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
    `is_slow`: the error is only that it took too long.
    """

    version: str = ""
    cuda: str | None = None
    error: str = ""
    problem: str = ""
    gpus: tuple[TorchGpu, ...] = ()
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class CheckedKernels:
    """A check of the kernels that ran on a GPU: launches, time in seconds, and what disagrees, else empty."""

    gpu: int
    name: str
    launches: int
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class TimedLaunches:
    """Microseconds from one small kernel to the next on a GPU, launched one by one and from a CUDA graph."""

    gpu: int
    single_us: float
    graph_us: float


@dataclass(frozen=True, slots=True)
class KernelChecks:
    """All checks that ran, the launches that were timed, and why there are no more, else empty."""

    checked: tuple[CheckedKernels, ...] = ()
    problem: str = ""
    timed: tuple[TimedLaunches, ...] = ()


class Facts:
    """Asks the machine. The arguments are what tests replace."""

    def __init__(
        self,
        *,
        port: int = 8000,
        driver: Callable[[], Driver] = ask_driver,
        torch: Callable[[], Torch] | None = None,
        smi: Callable[[str], list[dict[str, str]]] = query_gpus,
        kernels: Callable[[], KernelChecks] | None = None,
    ) -> None:
        """`port` is the one that `wllm serve` would take; `smi` asks nvidia-smi for columns."""
        self.port, self.smi = port, smi
        self._driver, self._torch, self._kernels = driver, torch or ask_torch, kernels or check_kernels

    @cached_property
    def driver(self) -> Driver:
        """The NVIDIA driver."""
        return self._driver()

    @cached_property
    def torch(self) -> Torch:
        """The installed torch."""
        return self._torch()

    @cached_property
    def kernels(self) -> KernelChecks:
        """What the kernels computed; takes the GPU for some seconds."""
        return self._kernels()


def ask_torch() -> Torch:
    """Import torch in another process and take its answer; never raises for a torch that is missing or broken."""
    if importlib.util.find_spec("torch") is None:
        return Torch()
    answers, problem, is_slow = ask("wllm.doctor.torch_probe", _TORCH_SECONDS)
    if problem or not answers:
        return Torch(error=f"the process that imports it {problem or 'said nothing'}", is_slow=is_slow)
    gpus = tuple(TorchGpu(**gpu) for gpu in answers[0].pop("gpus", ()))
    return Torch(**answers[0], gpus=gpus)


def check_kernels() -> KernelChecks:
    """Run the kernels' self-check in another process, on every GPU, and time launches there."""
    answers, problem, _ = ask("wllm.doctor.kernel_probe", _KERNELS_SECONDS)
    checked = tuple(CheckedKernels(**answer) for answer in answers if "launches" in answer)
    return KernelChecks(checked, problem, tuple(TimedLaunches(**answer) for answer in answers if "graph_us" in answer))

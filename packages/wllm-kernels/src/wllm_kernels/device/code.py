"""Where the code of a kernel family comes from: the container of the wheel, else NVRTC of the user's own torch.

The container serves every GPU that it has machine code for. NVRTC compiles the same sources, once, where it has none:
for a GPU newer than this version of the package, and in a checkout whose sources changed or were never built. Its
results are kept in the user's cache folder (`compiler.modules`). Two environment variables serve tests and benchmarks:
WLLM_KERNELS_CONTAINER names another container, WLLM_KERNELS_TARGET asks for one target on whatever GPU there is;
`compute_80` is PTX, which the driver compiles.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from wllm_kernels.compiler import container, modules
from wllm_kernels.compiler.families import FAMILIES, Family, best_target, number_of, runs_on
from wllm_kernels.compiler.nvrtc import Nvrtc
from wllm_kernels.compiler.sources import source_of
from wllm_kernels.errors import CompilationFailed, InvalidArgument, NoKernel, StaleContainer, UnsupportedByGpu

_log = logging.getLogger(__name__)

# Compute capability 10.0 and later came with CUDA 12.8: no older driver knows these GPUs.
_FIRST_OF_CUDA_12_8 = 100


@dataclass(frozen=True, slots=True)
class Code:
    """A family's machine code ("sm_86") or PTX ("compute_80"); `driver_version` is the oldest that loads it."""

    image: bytes
    target: str
    origin: str
    driver_version: int


class CodeSource:
    """Finds code by family and GPU. Not thread-safe: the backend asks under its lock."""

    def __init__(
        self,
        container_path: Path = container.BUILT,
        *,
        chosen: bool = False,
        target: str | None = None,
        compilers: Callable[[], Iterable[Path | str]] | None = None,
        families: Iterable[Family] = FAMILIES,
    ) -> None:
        """`chosen`: somebody named this container, so it must be right; `target` replaces that of the GPU."""
        self._families = {family.name: family for family in families}
        self._target, self._chosen = target, chosen
        self._compilers = installed_nvrtc if compilers is None else compilers
        try:
            self._container: container.Container | None = container.Container(container_path)
        except FileNotFoundError:
            if chosen:
                raise InvalidArgument(
                    f"WLLM_KERNELS_CONTAINER={container_path} is not a file; build one with "
                    "`python -m wllm_kernels.compiler --output FOLDER`, or unset the variable"
                ) from None
            self._container = None

    @property
    def forced_capability(self) -> int | None:
        """The capability of the target that was asked for, if any."""
        return None if self._target is None else number_of(self._target)

    def find(self, family_name: str, capability: int, gpu_name: str, driver_version: int) -> Code:
        """The code of a family for a GPU.

        Raises `UnsupportedByGpu`, `NoKernel`, and `StaleContainer` for a container that somebody chose.
        """
        family = self._families[family_name]
        if not runs_on(family.targets, capability):
            raise UnsupportedByGpu(
                f"kernel family {family.name} is for GPUs of compute capability "
                f"{', '.join(map(capability_text, family.targets))}, and {gpu_name} has {capability_text(capability)}; "
                "use another dtype"
            )
        target, why_not = self._in_container(family, capability)
        if target is not None and self._container is not None:
            return Code(
                self._container.code(family.name, target),
                target,
                "the container",
                _driver_for(target, self._container.compiler),
            )
        return self._compiled(family, self._target or f"sm_{capability}", gpu_name, driver_version, why_not)

    def preview(self, capability: int) -> dict[str, str]:
        """By family that this capability can run: target and origin, as `find` would choose; loads nothing."""
        found = {}
        for family in self._families.values():
            if runs_on(family.targets, capability):
                target, _ = self._in_container(family, capability)
                compiled = self._target or f"sm_{capability}"
                found[family.name] = f"{compiled} by NVRTC" if target is None else f"{target} from the container"
        return found

    def _in_container(self, family: Family, capability: int) -> tuple[str | None, str]:
        """The target to take from the container, or None and the reason why there is none."""
        if self._container is None:
            return None, "no container was built: this is a checkout without `python -m wllm_kernels.compiler`"
        targets = self._container.targets(family.name)
        target = self._target or _machine_code(capability, targets)
        if target not in targets:
            return None, f"the container has {', '.join(targets) or 'nothing of this family'}"
        if not self._container.is_current(family):
            if self._chosen:
                raise StaleContainer(
                    f"{self._container.path} (WLLM_KERNELS_CONTAINER) was built from other sources of kernel family "
                    f"{family.name} than those of this package; build it anew, or unset the variable"
                )
            return None, "the container was built from other sources: run `python -m wllm_kernels.compiler`"
        return target, ""

    def _compiled(self, family: Family, target: str, gpu_name: str, driver_version: int, why_not: str) -> Code:
        source = source_of(family)
        tried = []
        for path in self._compilers():
            try:
                compiler = Nvrtc(path)
            except CompilationFailed as error:
                # A bare name is a guess, a path is a library that ought to work.
                if isinstance(path, Path):
                    tried.append(str(error))
                continue
            needed = _driver_for(target, compiler.version)
            if needed > driver_version:
                tried.append(f"NVRTC {compiler.version} ({path}) makes code that needs a newer driver")
                continue
            _log.warning(
                "kernel family %s for %s comes from NVRTC %s, which compiles it once (seconds): %s",
                family.name, target, compiler.version, why_not,
            )  # fmt: skip
            try:
                module = modules.compile_module(source, target, compiler, modules.folder())
            except CompilationFailed as error:
                tried.append(str(error)[:2000])
                continue
            return Code(module.code, target, f"NVRTC {compiler.version}", needed)
        raise NoKernel(
            f"no code of kernel family {family.name} for {gpu_name} ({target}): {why_not}; "
            f"{'; '.join(tried) or 'there is no NVRTC beside torch or on the search path of the system'}. Install a "
            "newer wllm-kernels, or a CUDA build of torch, which brings NVRTC"
        )


def from_environment() -> CodeSource:
    """The code source that the environment variables ask for."""
    target = os.environ.get("WLLM_KERNELS_TARGET") or None
    if target is not None:
        try:
            number_of(target)
        except InvalidArgument as error:
            raise InvalidArgument(f"WLLM_KERNELS_TARGET: {error}") from None
    if path := os.environ.get("WLLM_KERNELS_CONTAINER"):
        return CodeSource(Path(path), chosen=True, target=target)
    return CodeSource(target=target)


def installed_nvrtc(torch_folder: Path | None = None) -> Iterator[Path | str]:
    """NVRTC libraries of this machine: torch's own, those of NVIDIA's pip wheels, then the system's; newest first."""
    torch_folder = Path(torch.__file__).parent if torch_folder is None else torch_folder
    wheels = torch_folder.parent / "nvidia"
    if sys.platform == "win32":
        places, pattern = [torch_folder / "lib", *wheels.glob("*/bin"), *wheels.glob("*/bin/x86_64")], "nvrtc64_*_0.dll"
        system = ("nvrtc64_130_0.dll", "nvrtc64_120_0.dll")
    else:
        places, pattern = [torch_folder / "lib", *wheels.glob("*/lib")], "libnvrtc.so.*"
        system = ("libnvrtc.so.13", "libnvrtc.so.12")
    found = [file.resolve() for place in places for file in place.glob(pattern)]
    yield from sorted(dict.fromkeys(found), key=lambda file: file.name, reverse=True)
    yield from system


def capability_text(capability: int) -> str:
    """Compute capability times ten, as people write it: 86 is 8.6."""
    return f"{capability // 10}.{capability % 10}"


def _machine_code(capability: int, targets: Iterable[str]) -> str | None:
    """The one of `targets` that a GPU runs best."""
    found = best_target(capability, (number_of(target) for target in targets if target.startswith("sm_")))
    return None if found is None else f"sm_{found}"


def _driver_for(target: str, compiler: str) -> int:
    """The oldest driver for a compiler's work: PTX needs one of its version, machine code one of its major version."""
    major, minor = (int(part) for part in compiler.split(".")[:2])
    if target.startswith("compute_"):
        return 1000 * major + 10 * minor
    return max(1000 * major, 12080 if number_of(target) >= _FIRST_OF_CUDA_12_8 else 0)

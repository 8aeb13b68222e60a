"""Which torch to install: the versions that wLLM takes, in the build that suits the NVIDIA driver.

As a program it prints what pip is told for this machine, an argument a line, for `scripts/install.ps1`.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from wllm.console import complain, say
from wllm.doctor.driver import Driver, ask_driver
from wllm.doctor.shell_command import ShellCommand, pip

UPDATE_DRIVER = "update the NVIDIA driver (R580 or newer)"
NEWEST = "cu130"
_INDEX = "https://download.pytorch.org/whl"
_NEWEST_CUDA, _OLDER_CUDA, _OLDER = 13, 12, "cu126"
# Code for these came with CUDA 12.8, so that the builds for 12.6 have none.
_BLACKWELL = 10
# What torch/version.py says of a build for GPUs: the version of CUDA, or of another maker's libraries.
_BUILT_FOR = re.compile(r"^(cuda|hip|xpu)\b.*= '([\d.]+)", re.MULTILINE)


def build_for(driver: Driver) -> str | None:
    """The name of the build, such as cu130, or cpu without a GPU; None where the driver is too old for any."""
    if not driver.gpus:
        return "cpu"
    cuda = driver.version // 1000
    if cuda >= _NEWEST_CUDA:
        return NEWEST
    blackwell = any(gpu.capability[0] >= _BLACKWELL for gpu in driver.gpus)
    return _OLDER if cuda == _OLDER_CUDA and not blackwell else None


def torch_range() -> str:
    """The versions of torch that `wllm` declares, such as `>=2.9,<2.16`; empty where it is not installed."""
    try:
        lines = metadata.requires("wllm") or ()
    except metadata.PackageNotFoundError:
        return ""
    for line in lines:
        if found := re.fullmatch(r"torch\s*([<>=!~].*)", line.partition(";")[0].strip()):
            return ",".join(sorted(found[1].split(","), reverse=True))
    return ""


def pip_arguments(build: str) -> tuple[str, ...]:
    """What `pip install` is told to get a build."""
    return (f"torch{torch_range()}", "--index-url", f"{_INDEX}/{build}")


def install_command(driver: Driver) -> ShellCommand:
    """What installs the torch that suits the driver, or a driver to come, over whatever is there."""
    return pip("install", "--force-reinstall", *pip_arguments(build_for(driver) or NEWEST))


def install_steps(driver: Driver) -> str:
    """The same in words: first, where it must be, a new driver."""
    command = str(install_command(driver))
    return command if build_for(driver) else f"{UPDATE_DRIVER}, then: {command}"


def idle_gpu(folder: Path | None = None, driver: Callable[[], Driver] = ask_driver) -> str:
    """What to tell whose GPU the torch in `folder` cannot use: a CPU build, or for a newer CUDA than the driver has.

    Empty where that is not so. Takes milliseconds: reads a file of torch instead of importing it, and asks the driver.
    """
    if folder is None:
        spec = importlib.util.find_spec("torch")
        folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if folder is None or not (folder / "version.py").is_file():
        return ""
    built_for = dict(_BUILT_FOR.findall((folder / "version.py").read_text(encoding="utf-8")))
    cuda = built_for.get("cuda", "0")
    found = driver()
    if not found.gpus:
        return ""
    if not built_for:
        reason = "this torch is a CPU build"
    elif int(cuda.partition(".")[0]) > found.version // 1000:
        reason = f"this torch is for CUDA {cuda}, and the NVIDIA driver has CUDA {found.cuda}"
    else:
        return ""
    return f"{found.gpus[0].name} stays idle: {reason}. To get one that uses it: {install_steps(found)}"


def main(argv: Sequence[str] | None = None, driver: Callable[[], Driver] = ask_driver) -> int:
    """Print the arguments for the driver that is there; 1 and the reason where no build suits it."""
    parser = argparse.ArgumentParser(prog="python -m wllm.doctor.torch_build", description="Which torch to install.")
    parser.add_argument("--cpu", action="store_true", help="the CPU build, whatever GPU is there")
    found = Driver(loaded=False) if parser.parse_args(argv).cpu else driver()
    build = build_for(found)
    if build is None:
        complain(f"No build of torch suits {found.gpus[0]} with a driver for CUDA {found.cuda}: {UPDATE_DRIVER}.")
        return 1
    say("\n".join(pip_arguments(build)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

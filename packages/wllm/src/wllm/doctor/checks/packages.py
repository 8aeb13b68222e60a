"""The six wheels, what they need, and torch."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from importlib import metadata

from wllm.doctor.facts import Facts
from wllm.doctor.finding import Finding, Verdict
from wllm.doctor.shell_command import pip
from wllm.doctor.torch_build import UPDATE_DRIVER, build_for, install_command, install_steps, torch_range

WHEELS = ("wllm", "wllm-api", "wllm-cache", "wllm-kernels", "wllm-runtime", "wllm-sched")


def wheels(_: Facts) -> Iterator[Finding]:
    """All six, of one version, with everything that they require."""
    command = pip("install", "--force-reinstall", "--no-deps", "WHEELS")
    fix = f"install all six wheels of one version in one command: {command}"
    versions = {name: _version(name) for name in WHEELS}
    missing = [name for name, version in versions.items() if version is None]
    known = sorted({version for version in versions.values() if version is not None})
    if not known and all(importlib.util.find_spec(name.replace("-", "_")) for name in WHEELS):
        yield Finding("wheels", Verdict.NOTE, "none installed: this runs from the sources")
    elif missing:
        yield Finding("wheels", Verdict.PROBLEM, f"not installed: {', '.join(missing)}", "wLLM is six wheels", fix)
    elif len(known) > 1:
        seen = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding("wheels", Verdict.PROBLEM, seen, "the six have one version and fit no other", fix)
    else:
        yield Finding("wheels", Verdict.OK, f"all six, {known[0]}")
    # Torch is a check of its own: this command would bring a build for any machine, not for this one.
    if absent := sorted(name for name in _required() - {*WHEELS, "torch"} if _version(name) is None):
        command = pip("install", *absent)
        seen = f"not installed: {', '.join(absent)}"
        yield Finding("dependencies", Verdict.PROBLEM, seen, "the wheels need them", str(command), command)


def torch(facts: Facts) -> Iterator[Finding]:
    """Installed, importable, of a version that works, built for the GPU and the driver that are there."""
    found = facts.torch
    fix = install_steps(facts.driver)
    command = install_command(facts.driver) if build_for(facts.driver) else None
    seen = f"torch {found.version}, " + (f"for CUDA {found.cuda}" if found.cuda else "a CPU build")
    if found.is_slow:
        reason = "importing torch takes seconds; a virus scanner that reads it for the first time takes minutes"
        yield Finding("torch", Verdict.WARNING, found.error, reason, "run wllm doctor again when the machine is idle")
    elif found.error and ("DLL" in found.error or "WinError" in found.error):
        fix = f"see the Visual C++ runtime below; if that is well: {fix}"
        yield Finding("torch", Verdict.PROBLEM, found.error, "torch is there and cannot be imported", fix)
    elif found.error:
        yield Finding("torch", Verdict.PROBLEM, found.error, "torch is there and cannot be imported", fix, command)
    elif not found.version:
        yield Finding("torch", Verdict.PROBLEM, "not installed", "models run on torch", fix, command)
    elif not _in_range(found.version, bounds := torch_range()):
        yield Finding("torch", Verdict.PROBLEM, seen, f"wLLM takes torch{bounds}", fix, command)
    elif found.cuda is None and facts.driver.gpus:
        seen = f"{seen}, beside {facts.driver.gpus[0].name}"
        reason = "a CPU build cannot use the GPU; on Windows pip takes it unless an index is named"
        yield Finding("torch", Verdict.PROBLEM, seen, reason, fix, command)
    elif found.cuda and facts.driver.gpus and int(found.cuda.partition(".")[0]) > facts.driver.version // 1000:
        reason = f"the NVIDIA driver has CUDA {facts.driver.cuda}, which is older than what torch is built for"
        # Where no older build serves, the driver is all there is to change: this torch can stay.
        update = f"{UPDATE_DRIVER}, or: {fix}" if command else UPDATE_DRIVER
        yield Finding("torch", Verdict.PROBLEM, seen, reason, update, command)
    else:
        yield Finding("torch", Verdict.OK, seen)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _required() -> set[str]:
    """What the six require always, without versions; what depends on the system or an extra is left out."""
    lines = [line for wheel in WHEELS if _version(wheel) for line in metadata.requires(wheel) or ()]
    return {re.split(r"[^\w.-]", line)[0].lower() for line in lines if ";" not in line}


def _in_range(version: str, bounds: str) -> bool:
    own = _numbers(version)
    least, below = re.search(r">=([\d.]+)", bounds), re.search(r"<([\d.]+)", bounds)
    return (not least or own >= _numbers(least[1])) and (not below or own < _numbers(below[1]))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:2])

"""Runs the checks. A check that fails is a finding too; nothing of it reaches the user as a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from wllm.doctor.checks import gpu, on_windows, packages, port, results, storage, system
from wllm.doctor.facts import Facts
from wllm.doctor.finding import Check, Finding, Verdict

EVERYWHERE = (
    Check("operating system", system.operating_system),
    Check("Python", system.python),
    Check("wheels", packages.wheels),
    Check("torch", packages.torch),
    Check("NVIDIA driver", gpu.driver),
    Check("GPU", gpu.gpus),
    Check("GPU memory", gpu.gpu_memory),
    Check("kernels", gpu.kernels),
    Check("model cache", storage.cache),
    Check("temporary files", storage.temporary_files),
    Check("port", port.port),
)
ON_REQUEST = (Check("kernels' results", results.results),)
ON_WINDOWS = (
    Check("Visual C++ runtime", on_windows.runtime_dlls),
    Check("long paths", on_windows.long_paths),
    Check("console", on_windows.code_page),
    Check("page file", on_windows.page_file),
    Check("hardware scheduling", on_windows.hardware_scheduling),
    Check("virus scanner", on_windows.virus_scanner),
)


def checks_here(*, kernels: bool = False) -> Sequence[Check]:
    """Those of this operating system; with `kernels` also the one that runs every kernel."""
    here = (*EVERYWHERE, *ON_WINDOWS) if sys.platform == "win32" else EVERYWHERE
    return (*here, *ON_REQUEST) if kernels else here


def examine(facts: Facts, checks: Sequence[Check]) -> list[Finding]:
    """What all checks find, in their order."""
    found: list[Finding] = []
    for check in checks:
        try:
            found.extend(check.look(facts))
        except Exception as error:
            seen = f"could not be checked: {type(error).__name__}: {error}"
            reason = "this installation is incomplete, or `wllm doctor` has a fault"
            found.append(Finding(check.name, Verdict.WARNING, seen, reason))
    return found

"""The build: every family for every target, into a container and a report. Compiles side by side, and only what is new.

Called by the build hook (hatch_build.py) and by `python -m wllm_kernels.compiler`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from wllm_kernels.compiler import container, report
from wllm_kernels.compiler.families import FAMILIES, Family, number_of
from wllm_kernels.compiler.modules import compile_module
from wllm_kernels.compiler.nvrtc import Nvrtc, find_wheel
from wllm_kernels.compiler.sources import CSRC, offences, source_of
from wllm_kernels.errors import CompilationFailed, InvalidArgument


def build(
    folder: Path,
    *,
    cache: Path | None,
    families: Sequence[Family] = FAMILIES,
    targets: Sequence[str] = (),
    csrc: Path = CSRC,
    say: Callable[[str], None] = print,
) -> None:
    """Write `kernels.wk` and `kernels-report.txt` into `folder`; `targets` replace those of the families.

    `cache` is the folder of modules, None compiles all. Raises `CompilationFailed`, naming file and line, and
    `InvalidArgument` for targets that there are not.
    """
    check_sources(csrc)
    compiler = Nvrtc(find_wheel())
    sources = {family.name: source_of(family, csrc) for family in families}
    wanted = [(family.name, target) for family in families for target in targets_of(family, targets)]
    if not wanted:
        raise InvalidArgument(f"no family wanted is for {', '.join(targets)}; name newer targets")
    modules = {}
    pool = ThreadPoolExecutor(max_workers=os.cpu_count())
    try:
        running = {
            pool.submit(compile_module, sources[family], target, compiler, cache): (family, target)
            for family, target in wanted
        }
        for future in as_completed(running):
            family, target = running[future]
            module = modules[family, target] = future.result()
            if module.cpu_seconds:
                say(f"[{len(modules)}/{len(wanted)}] {family} {target}: {module.cpu_seconds:.1f} s")
            if warnings := warnings_in(module.log):
                raise CompilationFailed(f"{family} for {target} compiles with warnings, correct them:\n{warnings}")
    finally:
        # After a failure the rest need not be compiled.
        pool.shutdown(cancel_futures=True)
    digests = {name: source.digest for name, source in sources.items()}
    path = folder / container.FILE_NAME
    container.write(path, compiler.version, digests, {key: module.packed for key, module in modules.items()})
    uses = [use for (family, _), module in modules.items() for use in report.kernels_in(family, module.log)]
    (folder / report.FILE_NAME).write_text(report.table(uses), encoding="utf-8", newline="\n")
    spent = [module.cpu_seconds for module in modules.values() if module.cpu_seconds]
    size = path.stat().st_size / 1e6
    say(f"{len(modules)} modules, {len(spent)} compiled in {sum(spent):.0f} CPU-seconds: {size:.2f} MB")


def targets_of(family: Family, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The family's own targets, or those of `wanted` that have the instructions it needs."""
    if not wanted:
        return tuple(f"sm_{number}" for number in family.targets)
    return tuple(target for target in wanted if number_of(target) >= min(family.targets))


def warnings_in(log: str) -> str:
    """What a compiler's log says beside ptxas's numbers; empty for a clean compilation."""
    return "\n".join(line for line in log.splitlines() if not line.startswith(("ptxas info", "ptxas   ")))


def check_sources(csrc: Path = CSRC) -> None:
    """Raise `CompilationFailed` where a source breaks a rule of csrc/."""
    found = [
        f"{path.name}({line}): {reason}"
        for path in sorted(csrc.iterdir())
        for line, reason in offences(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise CompilationFailed("The kernel sources break rules of csrc/, correct them:\n" + "\n".join(found))

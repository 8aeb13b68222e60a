"""The build: every family for every target, into a container and a report. Compiles side by side, and only what is new.

Called by the build hook (hatch_build.py) and by `python -m wllm_kernels.compiler`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from wllm_kernels.compiler import container, report
from wllm_kernels.compiler.families import FAMILIES, Family
from wllm_kernels.compiler.modules import compile_module
from wllm_kernels.compiler.nvrtc import Nvrtc, find_wheel
from wllm_kernels.compiler.sources import CSRC, offences, source_of
from wllm_kernels.errors import CompilationFailed


def build(
    folder: Path,
    *,
    cache: Path | None,
    families: Sequence[Family] = FAMILIES,
    targets: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Write `kernels.wk` and `kernels-report.txt` into `folder`; `targets` replace those of the families.

    `cache` is the folder of modules, None compiles all. Raises `CompilationFailed`, naming file and line.
    """
    check_sources()
    compiler = Nvrtc(find_wheel())
    sources = {family.name: source_of(family) for family in families}
    wanted = [(family.name, target) for family in families for target in targets_of(family, targets)]
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
            if "warning" in module.log:
                say(module.log)
    finally:
        # After a failure the rest need not be compiled.
        pool.shutdown(cancel_futures=True)
    container.write(
        folder / container.FILE_NAME,
        compiler.version,
        {name: source.digest for name, source in sources.items()},
        {key: module.packed for key, module in modules.items()},
    )
    uses = [use for (family, _), module in modules.items() for use in report.kernels_in(family, module.log)]
    (folder / report.FILE_NAME).write_text(report.table(uses), encoding="utf-8", newline="\n")
    compiled = [module.cpu_seconds for module in modules.values() if module.cpu_seconds]
    size = (folder / container.FILE_NAME).stat().st_size
    say(f"{len(modules)} modules, {len(compiled)} compiled in {sum(compiled):.0f} CPU-seconds: {size / 1e6:.2f} MB")


def targets_of(family: Family, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The family's own targets, or those of `wanted` that have the instructions it needs."""
    if not wanted:
        return tuple(f"sm_{number}" for number in family.targets)
    return tuple(target for target in wanted if int(target.split("_")[1]) >= min(family.targets))


def check_sources(csrc: Path = CSRC) -> None:
    """Raise `CompilationFailed` where a source breaks a rule of csrc/."""
    found = [
        f"{path.name}({line}): {reason}"
        for path in sorted(csrc.iterdir())
        for line, reason in offences(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise CompilationFailed("The kernel sources break rules of csrc/, correct them:\n" + "\n".join(found))

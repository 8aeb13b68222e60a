"""`python -m wllm_kernels.compiler`: build the container beside the sources, or elsewhere for a benchmark."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wllm_kernels.compiler import container, modules, report
from wllm_kernels.compiler.build import build
from wllm_kernels.compiler.families import FAMILIES
from wllm_kernels.errors import CompilationFailed, InvalidArgument


def main() -> None:
    """Build as the arguments say."""
    names = [family.name for family in FAMILIES]
    parser = argparse.ArgumentParser(prog="python -m wllm_kernels.compiler", description=__doc__)
    parser.add_argument("--output", type=Path, default=container.BUILT.parent, metavar="FOLDER")
    parser.add_argument("--families", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--targets", nargs="+", default=[], metavar="TARGET", help="such as sm_90 or compute_80 (PTX)")
    parser.add_argument("--no-cache", action="store_true", help="compile all, and keep none of it")
    parser.add_argument("--ptxas-report", action="store_true", help="print registers and spills of each kernel")
    arguments = parser.parse_args()
    try:
        build(
            arguments.output,
            cache=None if arguments.no_cache else modules.folder(),
            families=[family for family in FAMILIES if family.name in arguments.families],
            targets=arguments.targets,
        )
    except (CompilationFailed, InvalidArgument) as error:
        parser.exit(1, f"{error}\n")
    if arguments.ptxas_report:
        sys.stdout.write((arguments.output / report.FILE_NAME).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

"""The build hook of hatchling: compiles the kernels and puts the container and its report into the wheel.

An editable install gets them beside the sources. The wheel stays `py3-none-any`: machine code for a GPU is data.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "src/wllm_kernels"


class KernelsHook(BuildHookInterface[Any]):
    """Runs for wheels, editable ones too; a source archive holds sources only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what the user's cache of modules does not have."""
        if sys.platform == "darwin":
            self.app.display_warning("There is no compiler for macOS: this wheel runs on the CPU only.")
            return
        package = Path(self.root) / PACKAGE
        # The package's __init__ imports torch, which need not be where wheels are built: a bare module leads past it.
        namespace = types.ModuleType("wllm_kernels")
        namespace.__path__ = [str(package)]
        sys.modules[namespace.__name__] = namespace
        from wllm_kernels.compiler import build, container, modules, report
        from wllm_kernels.errors import CompilationFailed

        folder = package
        if version != "editable":
            self._temporary = TemporaryDirectory()
            folder = Path(self._temporary.name)
            for name in (container.FILE_NAME, report.FILE_NAME):
                build_data["force_include"][str(folder / name)] = f"wllm_kernels/{name}"
        try:
            build.build(folder, cache=modules.folder(), say=self.app.display_info)
        except CompilationFailed as error:
            self.app.abort(str(error))

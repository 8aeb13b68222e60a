"""The other ways to machine code, and compute-sanitizer: each runs the self-check in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wllm_kernels.compiler import container

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
]


def run(*before: str, **environment: str) -> str:
    """The output of the program, which must succeed."""
    result = subprocess.run(
        [*before, sys.executable, "-m", "wllm_kernels.selfcheck"],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=570,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert "all agree" in result.stdout
    return result.stdout


def test_own_code_of_the_gpu() -> None:
    assert f"sm_{torch.cuda.get_device_capability()[0]}" in run()


def test_ptx_that_the_driver_compiles() -> None:
    assert "code: compute_80" in run(WLLM_KERNELS_TARGET="compute_80")


def test_code_that_nvrtc_compiles_here(tmp_path: Path) -> None:
    empty = tmp_path / "empty.wk"
    container.write(empty, "12.9", {}, {})
    output = run(WLLM_KERNELS_CONTAINER=str(empty), WLLM_KERNELS_CACHE=str(tmp_path))
    major, minor = torch.cuda.get_device_capability()
    assert f"code: sm_{major}{minor} by NVRTC\n" in output


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer(tool: str) -> None:
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not on PATH")
    run(
        "compute-sanitizer",
        "--tool",
        tool,
        "--report-api-errors",
        "no",
        "--error-exitcode",
        "9",
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )

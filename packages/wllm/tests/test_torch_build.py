"""Which torch suits a driver, and what `scripts/install.ps1` is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wllm.doctor.driver import Driver, GpuOfDriver
from wllm.doctor.torch_build import build_for, main

RTX_2060, RTX_5090 = GpuOfDriver("RTX 2060", (7, 5)), GpuOfDriver("RTX 5090", (12, 0))
INDEX = "https://download.pytorch.org/whl"


@pytest.mark.parametrize(
    ("driver", "build"),
    [
        (Driver(loaded=False), "cpu"),
        (Driver(True, 13000, problem="it finds no GPU"), "cpu"),
        (Driver(True, 13010, (RTX_2060,)), "cu130"),
        (Driver(True, 14000, (RTX_5090,)), "cu130"),
        (Driver(True, 12090, (RTX_2060,)), "cu126"),
        (Driver(True, 12090, (RTX_2060, RTX_5090)), None),
        (Driver(True, 11080, (RTX_2060,)), None),
    ],
)
def test_the_build_suits_the_driver(driver: Driver, build: str | None) -> None:
    assert build_for(driver) == build


def test_pip_is_told_the_versions_and_the_index(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], lambda: Driver(True, 13000, (RTX_2060,))) == 0
    assert capsys.readouterr().out.splitlines() == ["torch>=2.9,<2.16", "--index-url", f"{INDEX}/cu130"]


def test_a_driver_that_is_too_old_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    old = Driver(True, 12080, (RTX_5090,))
    assert main([], lambda: old) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "RTX 5090 (compute capability 12.0) with a driver for CUDA 12.8: update the NVIDIA driver" in output.err
    assert main(["--cpu"], lambda: old) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{INDEX}/cpu"


def test_it_runs_as_a_program_without_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "wllm.doctor.torch_build", "--cpu"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == f"{INDEX}/cpu"
    assert not {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()} & {"torch", "numpy", "fastapi"}

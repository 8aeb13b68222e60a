"""Which torch suits a driver, and what `scripts/install.ps1` is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stub_driver import AVAILABLE, preload

from wllm import cli
from wllm.doctor import torch_build
from wllm.doctor.driver import Driver, GpuOfDriver
from wllm.doctor.torch_build import build_for, idle_gpu, main

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


CPU, CUDA_12, CUDA_13 = "cuda: Optional[str] = None", "cuda: Optional[str] = '12.6'", "cuda: Optional[str] = '13.0'"


@pytest.mark.parametrize(
    ("says", "driver", "words"),
    [
        (CPU, Driver(True, 13000, (RTX_2060,)), ("this torch is a CPU build", f"--index-url {INDEX}/cu130")),
        (CPU, Driver(True, 11080, (RTX_2060,)), ("this torch is a CPU build", "update the NVIDIA driver")),
        (
            CUDA_13,
            Driver(True, 12040, (RTX_2060,)),
            ("for CUDA 13.0,", "driver has CUDA 12.4", f"--index-url {INDEX}/cu126"),
        ),
        (CUDA_13, Driver(True, 12080, (RTX_5090,)), ("for CUDA 13.0,", "update the NVIDIA driver")),
        (CPU, Driver(loaded=False), ()),
        (CPU, Driver(True, 13000, problem="it finds no GPU"), ()),
        (CUDA_13, Driver(True, 13000, (RTX_2060,)), ()),
        (CUDA_12, Driver(True, 13000, (RTX_2060,)), ()),
        (f"{CPU}\nhip: Optional[str] = '6.4.43482'", Driver(True, 13000, (RTX_2060,)), ()),
    ],
)
def test_a_gpu_that_stays_idle_is_told(says: str, driver: Driver, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text(f"from typing import Optional\n{says}\nxpu = None\n", encoding="utf-8")
    text = idle_gpu(tmp_path, lambda: driver)
    assert text.startswith(f"{driver.gpus[0].name} stays idle") if words else text == ""
    assert [word for word in words if word not in text] == []


def test_the_installed_torch_says_what_it_is_built_for() -> None:
    import torch

    told = idle_gpu(driver=lambda: Driver(True, 11080, (RTX_2060,)))
    assert ("CPU build" if torch.version.cuda is None else f"for CUDA {torch.version.cuda},") in told


@pytest.mark.parametrize("command", ["serve", "chat"])
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_serve_and_chat_tell_it_first(
    command: str, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_build, "idle_gpu", lambda: "it stays idle")
    assert cli.main([command, "--device", device, "--max-num-seqs", "0"]) == 1
    first = capsys.readouterr().err.splitlines()[0]
    assert (first == "it stays idle") is (device == "auto")


@pytest.mark.skipif(not AVAILABLE, reason="the stub driver needs a C compiler (gcc)")
@pytest.mark.parametrize("command", ["serve", "chat"])
def test_it_is_told_before_anything_slow_is_imported(command: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(preload(tmp_path, 13000), encoding="utf-8")
    (tmp_path / "torch").mkdir()
    for name in ("__init__.py", "version.py"):
        (tmp_path / "torch" / name).touch()
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": str(tmp_path)}
    words = [sys.executable, "-X", "importtime", "-m", "wllm", command, "--max-num-seqs", "0"]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", env=environment, timeout=120)
    before, notice, after = done.stderr.partition("Stub GPU stays idle")
    imported, later = ({line.rpartition("|")[2].strip() for line in text.splitlines()} for text in (before, after))
    slow = {"asyncio", "fastapi", "jinja2", "numpy", "torch", "wllm_api", "wllm_runtime"}
    assert notice and not imported & slow
    assert "wllm.cli" in imported and later & slow, done.stderr

"""docs/doctor.md shows what `wllm doctor` says of eight broken set-ups, word for word, run as a user runs it.

What cannot be taken from this machine is taken from the process: a folder that comes first on the path has other
wheels, another torch, a driver without a GPU, and a `sitecustomize`, which every Python imports when it starts.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from stub_driver import AVAILABLE, preload

from wllm.doctor import windows
from wllm.doctor.checks import on_windows
from wllm.doctor.facts import Facts, Torch
from wllm.doctor.finding import Finding, Verdict
from wllm.doctor.report import text_report

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
TORCH = "__version__ = '2.13.0+cpu'\nclass version: cuda = None\n"
NO_TORCH = "import sys\nsys.modules['torch'] = None\n"
NO_DLL = """
import ctypes
class CDLL(ctypes.CDLL):
    def __init__(self, name, *args, **kwargs):
        if name == "msvcp140.dll":
            raise FileNotFoundError(name)
        super().__init__(name, *args, **kwargs)
ctypes.CDLL = CDLL
"""
BROKEN_TORCH = """raise OSError('[WinError 126] Error loading "c10.dll" or one of its dependencies.')"""
FULL_DISK = "import shutil\nshutil.disk_usage = lambda folder: shutil._ntuple_diskusage(2**40, 2**40, 90 * 2**20)\n"
needs_stub = pytest.mark.skipif(not AVAILABLE, reason="the stub driver needs a C compiler (gcc)")
WHEELS = {"wllm": "0.1.0", "wllm_api": "0.1.0", "wllm_cache": "0.1.0", "wllm_kernels": "0.1.0", "wllm_runtime": "0.1.0"}
WHEELS["wllm_sched"] = "0.0.9"


def doctor(folder: Path, check: str, *arguments: str, code: int, torch: str = TORCH, start: str = "") -> Finding:
    """One finding of the doctor where `folder` comes first on the path, and the exit code of all of them."""
    (folder / "torch.py").write_text(torch, encoding="utf-8")
    (folder / "sitecustomize.py").write_text(start, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    paths = {"PYTHONPATH": path, "LD_LIBRARY_PATH": str(folder), "HF_HUB_CACHE": "D:\\models\\hub"}
    command = [sys.executable, "-m", "wllm", "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **paths}, timeout=120)
    assert done.stderr == b"" and done.returncode == code, done
    (row,) = [row for row in json.loads(done.stdout)["findings"] if row["check"] == check]
    for text, shown in ((sys.executable, "python"), ("Stub GPU", "NVIDIA GeForce RTX 4070")):
        row = {name: value.replace(f'& "{text}"', shown).replace(text, shown) for name, value in row.items()}
    return Finding(check, Verdict[row["verdict"].upper()], row["seen"], row["reason"], row["fix"])


def entry(finding: Finding) -> str:
    """How the page shows it: in the columns of a report whose longest name is that of the C++ runtime."""
    text = text_report([finding, Finding("Visual C++ runtime", Verdict.OK, "")])
    return text.partition("\nok ")[0]


def assert_on_the_page(finding: Finding) -> None:
    assert f"\n{entry(finding)}\n" in PAGE.read_text(encoding="utf-8"), entry(finding)


@needs_stub
def test_a_cpu_torch_beside_a_gpu(tmp_path: Path) -> None:
    assert_on_the_page(doctor(tmp_path, "torch", code=1, start=preload(tmp_path, 13000)))


@needs_stub
def test_no_torch(tmp_path: Path) -> None:
    assert_on_the_page(doctor(tmp_path, "torch", code=1, start=preload(tmp_path, 13000) + NO_TORCH))


@needs_stub
def test_an_old_driver(tmp_path: Path) -> None:
    assert_on_the_page(doctor(tmp_path, "NVIDIA driver", code=1, start=preload(tmp_path, 11080)))


def test_a_missing_runtime_dll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform == "win32":
        found = doctor(tmp_path, "Visual C++ runtime", code=1, start=NO_DLL, torch=BROKEN_TORCH)
    else:  # the check alone
        monkeypatch.setattr(sys, "executable", "python")
        monkeypatch.setattr(windows, "missing_dlls", lambda names: ["msvcp140.dll"])
        (found,) = on_windows.runtime_dlls(Facts(torch=lambda: Torch(error=BROKEN_TORCH)))
    assert_on_the_page(found)


def test_a_full_disk(tmp_path: Path) -> None:
    assert_on_the_page(doctor(tmp_path, "model cache", code=1, start=FULL_DISK))


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = doctor(tmp_path, f"port {port}", "--port", port, code=0)
    # Whose it is the checks' own tests tell; Wine does not.
    seen = re.sub("taken by .+", "taken by llama-server.exe (process 4242)", found.seen)
    assert_on_the_page(Finding("port 8000", found.verdict, seen, found.reason, found.fix))


def test_a_console_with_an_old_code_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check alone: a test has no console."""
    monkeypatch.setattr(windows, "console_code_page", lambda: 1252)
    (found,) = on_windows.code_page(Facts())
    assert_on_the_page(found)


def test_wheels_that_do_not_belong_together(tmp_path: Path) -> None:
    for name, version in WHEELS.items():
        about = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    assert_on_the_page(doctor(tmp_path, "wheels", code=1))

"""The checks of `wllm doctor` on system, disks, port and Windows, each with its broken set-up.

What Windows would answer is put in its place, on Linux too.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from wllm.doctor import windows
from wllm.doctor.checks import on_windows, port, storage, system
from wllm.doctor.driver import Driver, GpuOfDriver
from wllm.doctor.facts import Facts, Torch
from wllm.doctor.finding import Finding, Verdict

Look = Callable[[Facts], Iterator[Finding]]
Usage = namedtuple("Usage", "total used free")


def one(look: Look, torch: Torch | None = None, port: int = 8000) -> Finding:
    """The only finding."""
    (found,) = look(Facts(port=port, torch=lambda: torch or Torch("2.13.0+cpu")))
    return found


# The operating system and Python


@pytest.mark.parametrize(
    ("release", "libc", "verdict"),
    [
        ("6.1.0", ("glibc", "2.36"), Verdict.OK),
        ("5.15.1-microsoft-standard-WSL2", ("glibc", "2.35"), Verdict.NOTE),
        ("4.18.0", ("glibc", "2.17"), Verdict.PROBLEM),
        ("6.6.0", ("", ""), Verdict.WARNING),
    ],
)
def test_linux(release: str, libc: tuple[str, str], verdict: Verdict) -> None:
    assert system._linux(release, libc).verdict is verdict


def test_windows_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(windows, "build", lambda: 26100)
    assert next(system.operating_system(Facts())).seen == "Windows 11, build 26100"
    monkeypatch.setattr(windows, "build", lambda: 17763)
    old = next(system.operating_system(Facts()))
    assert old.verdict is Verdict.WARNING and "Windows 10, build 17763" in old.seen


@pytest.mark.parametrize(
    ("version", "pointer", "base", "verdict"),
    [
        ((3, 12), 8, "C:\\Python312", Verdict.OK),
        ((3, 10), 8, "C:\\Python310", Verdict.PROBLEM),
        ((3, 15), 8, "C:\\Python315", Verdict.WARNING),
        ((3, 12), 4, "C:\\Python312-32", Verdict.PROBLEM),
        ((3, 12), 8, "C:\\Program Files\\WindowsApps\\PythonSoftwareFoundation.Python.3.12", Verdict.WARNING),
    ],
)
def test_python(
    version: tuple[int, int], pointer: int, base: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system.sys, "version_info", version)
    monkeypatch.setattr(system.struct, "calcsize", lambda kind: pointer)
    monkeypatch.setattr(system.sys, "base_prefix", base)
    found = one(system.python)
    assert found.verdict is verdict and (verdict is Verdict.OK or "python.org" in found.fix)


# Disks and the port


@pytest.mark.parametrize("look", [storage.cache, storage.temporary_files])
@pytest.mark.parametrize(("free", "verdict"), [(0, 3), (2**29, 2), (100 * 2**30, 0)])
def test_a_full_disk(look: Look, free: int, verdict: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**40, 0, free))
    found = one(look)
    assert found.verdict == verdict and (free > 2**30 or "free disk space" in found.fix)


def test_the_cache_is_that_of_the_hub(tmp_path: Path) -> None:
    # In a process each: the hub's client reads the environment when it is imported.
    code = (
        "from huggingface_hub.constants import HF_HUB_CACHE as theirs;"
        "from wllm.doctor.checks.storage import model_cache; print(str(model_cache()) == theirs, theirs)"
    )
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    for settings in ({}, {"HF_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path), "HF_HOME": "x"}):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, encoding="utf-8", env={**clean, **settings}
        )
        assert done.stdout.startswith("True"), (settings, done.stdout, done.stderr)


def test_a_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--a--b").mkdir()
    assert "1 model(s)" in one(storage.cache).seen
    monkeypatch.setattr(storage, "_unwritable", lambda folder: "Permission denied")
    found = one(storage.cache)
    assert found.verdict is Verdict.WARNING and "Permission denied" in found.reason
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("HF_HUB_CACHE", str(file))
    assert one(storage.cache).verdict is Verdict.PROBLEM


def test_a_taken_port_is_told_with_its_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        found = one(port.port, port=number)
        assert found.verdict is Verdict.WARNING and "--port" in found.fix
        # Wine does not tell whose socket it is.
        known = [row.pid for row in psutil.net_connections("tcp") if row.laddr and row.laddr[1] == number]
        who = f"process {os.getpid()}" if os.getpid() in known else "a program that this user may not see"
        assert who in found.seen
    assert one(port.port, port=number).verdict is Verdict.OK


def test_a_port_that_windows_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port.sys, "platform", "win32")
    monkeypatch.setattr(windows, "excluded_ports", lambda: [(80, 80), (7990, 8089)])
    assert "the range 7990-8089 that Windows reserves" in port._holder(8000)


@pytest.mark.parametrize("error", [FileNotFoundError("netsh"), subprocess.TimeoutExpired("netsh", 20)])
def test_a_netsh_that_does_not_answer_reserves_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert windows.excluded_ports() == []


def test_what_netsh_prints_in_any_language() -> None:
    text = (
        "\r\nProtokoll tcp Portausschlussbereiche\r\n\r\nStartport      Endport\r\n----------    --------\r\n"
        "        80          80\r\n      7990        8089\r\n     50000       50059     *\r\n\r\n* - Verwaltet 1 2\r\n"
    )
    assert windows.port_ranges(text) == [(80, 80), (7990, 8089), (50000, 50059)]


# Windows alone


def test_missing_runtime_dlls(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = one(on_windows.runtime_dlls, torch=Torch(error="OSError: [WinError 126]"))
    if sys.platform != "win32":
        assert missing.verdict is Verdict.PROBLEM and "msvcp140.dll" in missing.seen and "vc_redist" in missing.fix
        assert one(on_windows.runtime_dlls).verdict is Verdict.NOTE
    monkeypatch.setattr(windows, "missing_dlls", lambda names: [])
    assert one(on_windows.runtime_dlls).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("look", "function", "good", "bad", "words"),
    [
        (on_windows.long_paths, "long_paths_enabled", True, False, "LongPathsEnabled 1"),
        (on_windows.code_page, "console_code_page", 65001, 1252, "chcp 65001"),
        (on_windows.code_page, "console_code_page", 0, 437, "chcp 65001"),
    ],
)
def test_settings_of_windows(
    look: Look, function: str, good: int, bad: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, function, lambda: good)
    assert one(look).verdict is Verdict.OK
    monkeypatch.setattr(windows, function, lambda: bad)
    found = one(look)
    assert found.verdict is Verdict.NOTE and words in found.fix


@pytest.mark.parametrize(("size", "verdict"), [(0, Verdict.WARNING), (2**34, Verdict.OK)])
def test_page_file(size: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "page_file_bytes", lambda: size)
    assert one(on_windows.page_file).verdict is verdict


@pytest.mark.parametrize(("on", "words"), [(True, "on"), (False, "off"), (None, "as the driver likes")])
def test_hardware_scheduling(on: bool | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "hardware_scheduling", lambda: on)
    gpu = Driver(True, 13000, (GpuOfDriver("RTX 4070", (8, 9)),))
    (found,) = on_windows.hardware_scheduling(Facts(driver=lambda: gpu))
    assert found.verdict is Verdict.NOTE and found.seen == words
    assert list(on_windows.hardware_scheduling(Facts(driver=lambda: Driver(loaded=False)))) == []


@pytest.mark.skipif(sys.platform != "win32", reason="asks Windows")
def test_what_windows_answers() -> None:
    assert windows.build() > 0 and windows.page_file_bytes() >= 0
    assert windows.console_code_page() >= 0 and windows.long_paths_enabled() in (True, False)
    assert windows.hardware_scheduling() in (True, False, None)
    assert windows.missing_dlls(("kernel32.dll", "no-such.dll")) == ["no-such.dll"]
    assert all(first <= last for first, last in windows.excluded_ports())


def test_the_virus_scanner_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = one(on_windows.virus_scanner)
    assert found.verdict is Verdict.NOTE and str(tmp_path) in found.seen

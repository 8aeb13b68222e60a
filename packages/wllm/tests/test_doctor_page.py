"""docs/doctor.md shows what the doctor says of eight broken set-ups, word for word."""

from __future__ import annotations

import shutil
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import pytest

from wllm.doctor import windows
from wllm.doctor.checks import gpu, on_windows, packages, port, storage
from wllm.doctor.driver import Driver, GpuOfDriver
from wllm.doctor.facts import Facts, Torch
from wllm.doctor.finding import Finding
from wllm.doctor.report import text_report
from wllm_api import sockets
from wllm_api.http_errors import PortUnavailable

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
RTX = (GpuOfDriver("NVIDIA GeForce RTX 4070", (8, 9)),)
NEW, OLD = Driver(True, 13000, RTX), Driver(True, 11080, RTX)
NO_DLL = Torch(error='OSError: [WinError 126] Error loading "torch_python.dll" or one of its dependencies.')
Usage = namedtuple("Usage", "total used free")


def broken(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """One finding of each set-up, in the order of the page."""

    def version(name: str) -> str:
        if name == "wllm-kernels":
            raise metadata.PackageNotFoundError(name)
        return "0.1.0"

    def taken(*_: object) -> NoReturn:
        raise PortUnavailable("taken")

    monkeypatch.setattr(sys, "executable", "python")
    monkeypatch.setattr(windows, "missing_dlls", lambda names: ["msvcp140.dll"])
    monkeypatch.setattr(windows, "console_code_page", lambda: 1252)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**40, 2**40, 90 * 2**20))
    monkeypatch.setattr(sockets, "bind_sockets", taken)
    monkeypatch.setattr(port, "_holder", lambda number: "taken by llama-server.exe (process 4242)")
    monkeypatch.setenv("HF_HUB_CACHE", "D:\\models\\hub")
    without, old = Facts(driver=lambda: NEW, torch=Torch), Facts(driver=lambda: OLD, torch=Torch)
    cpu = Facts(driver=lambda: NEW, torch=lambda: Torch("2.13.0+cpu"))
    found = [next(packages.torch(without)), next(packages.torch(cpu)), next(gpu.driver(old))]
    found += on_windows.runtime_dlls(Facts(torch=lambda: NO_DLL))
    found += [*storage.cache(cpu), *port.port(cpu), *on_windows.code_page(cpu)]
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: [])
    return [*found, *packages.wheels(cpu)]


def test_the_page_has_what_it_says_of_broken_set_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_report(broken(monkeypatch))
    assert f"```\n{text}\n```" in PAGE.read_text(encoding="utf-8"), text
    assert text.endswith("6 problems, 1 warning, 1 note")

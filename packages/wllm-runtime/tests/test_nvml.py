"""NVML's figure, asked of a library that stands in for it."""

from __future__ import annotations

import sys
from ctypes import c_void_p
from typing import Any

import pytest

from wllm_runtime import nvml


class Function:
    """A C function in Python; `ctypes` sets its signature, calls arrive with references."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self.calls = 0

    def __call__(self, *arguments: Any) -> int:
        self.calls += 1
        return int(self._body(*arguments))


class Library:
    """Knows one GPU with 5 GiB free."""

    def __init__(self, *, starts: bool = True, answers: bool = True) -> None:
        def handle(uuid: bytes, at: Any) -> int:
            at._obj.value = 77
            return 0 if uuid == b"GPU-11-22" else 6

        def memory(device: c_void_p, at: Any) -> int:
            assert device.value == 77
            at._obj.total, at._obj.free, at._obj.used = 12 << 30, 5 << 30, 7 << 30
            return 0 if answers else 3

        self.nvmlInit_v2 = Function(lambda: 0 if starts else 9)
        self.nvmlDeviceGetHandleByUUID = Function(handle)
        self.nvmlDeviceGetMemoryInfo = Function(memory)
        self.nvmlShutdown = Function(lambda: 0)


def test_the_gpu_is_found_by_its_uuid() -> None:
    library = Library()
    assert nvml.ask(library, "11-22") == 5 << 30
    assert library.nvmlShutdown.calls == 1


@pytest.mark.parametrize(
    ("library", "uuid", "shutdowns"),
    [(Library(starts=False), "11-22", 0), (Library(), "33", 1), (Library(answers=False), "11-22", 1)],
)
def test_no_figure_is_no_error(library: Library, uuid: str, shutdowns: int) -> None:
    assert nvml.ask(library, uuid) is None
    assert library.nvmlShutdown.calls == shutdowns


def test_a_machine_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", "there-is-no-such-library")
    assert nvml.free_memory("11-22") is None


def test_the_name_is_that_of_the_platform() -> None:
    assert nvml.LIBRARY == ("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")

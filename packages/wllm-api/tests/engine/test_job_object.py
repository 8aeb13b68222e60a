"""The job object of Windows."""

import ctypes
import subprocess
import sys

import pytest

from wllm_api.engine import job_object
from wllm_api.engine.job_object import end_with_this_process

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="job objects are Windows' own")

PARENT = (
    "import subprocess, sys\n"
    "from wllm_api.engine.job_object import end_with_this_process\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'])\n"
    "end_with_this_process(child.pid)\n"
)


def test_a_process_in_the_job_ends_with_its_owner() -> None:
    # The child has inherited this pipe: it ends when the child does.
    output = subprocess.run(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, encoding="utf-8", timeout=60, check=True
    )
    assert output.stdout in ("", "1\n")


def test_all_processes_are_in_one_job() -> None:
    # A job for each would be a handle for each, and a server that unloads models starts engines day after day.
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    kernel.IsProcessInJob.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, encoding="utf-8")
        end_with_this_process(child.pid)
        is_in = ctypes.c_int()
        handle = child._handle  # type: ignore[attr-defined,unused-ignore]
        assert kernel.IsProcessInJob(int(handle), job_object._job(), ctypes.byref(is_in))
        child.communicate("\n", timeout=60)
        assert is_in.value


def test_a_process_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="87"):
        end_with_this_process(999_999)

"""How many heaps the threads of a server have, as glibc tells it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

COUNT = """
import ctypes, sys, threading
from wllm_api.heaps import share_heaps
if "shared" in sys.argv:
    share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
held = threading.Barrier(9)
def allocate():
    libc.malloc(5000)
    held.wait()
    held.wait()
for _ in range(8):
    threading.Thread(target=allocate).start()
held.wait()
out = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, out)
libc.fclose(out)
held.wait()
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc has heaps of threads"
)
@pytest.mark.parametrize("how", ["shared", "own"])
def test_threads_share_two_heaps(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, how], capture_output=True, text=True, encoding="utf-8", check=True
    )
    heaps = done.stdout.count("<heap nr=")
    assert heaps == 2 if how == "shared" else heaps > 2

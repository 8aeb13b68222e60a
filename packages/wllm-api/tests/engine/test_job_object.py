"""The job object of Windows."""

import subprocess
import sys

import pytest

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


def test_a_process_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="87"):
        end_with_this_process(999_999)

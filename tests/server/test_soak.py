"""Random load on a whole server (bench/soak.py): a sample of it here, minutes with `-m full`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOAK = Path(__file__).parents[2] / "bench" / "soak.py"
# torch opens text without an encoding.
WARNINGS = ("-W", "error", "-W", "ignore::EncodingWarning")


def soak(folder: Path, minutes: float, *flags: str) -> dict[str, Any]:
    summary = folder / "summary.json"
    command = [sys.executable, *WARNINGS, str(SOAK), "--minutes", str(minutes), "--json", str(summary)]
    command += ["--", *flags]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=minutes * 60 + 300)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8"))
    return found


def assert_it_happened(summary: dict[str, Any]) -> None:
    """Everything that the load is there for."""
    assert not summary["violations"] and summary["tokens"] > 0
    for counter in ("num_preemptions", "prefix_cache_hits", "aborts_in_flight", "probed", "left_in_time"):
        assert summary[counter] > 0, counter
    assert summary["prefill_chunks"] > summary["num_preemptions"]
    assert summary["most_running"] > 8 and summary["max_steps_in_flight"] == 2
    assert len(summary["sent"]) == 16


def test_a_sample(tmp_path: Path) -> None:
    assert_it_happened(soak(tmp_path, 0.25))


@pytest.mark.full
def test_minutes(tmp_path: Path) -> None:
    summary = soak(tmp_path, 3)
    assert_it_happened(summary)
    assert len(summary["engine_mib"]) == 3


@pytest.mark.full
def test_a_minute_with_blocks_in_host_memory(tmp_path: Path) -> None:
    summary = soak(tmp_path, 1, "--kv-offload-gib", "0.05", "--kv-cache-dtype", "int8")
    assert_it_happened(summary)
    assert summary["kv_host_saves"] > 0 and summary["kv_host_loads"] > 0

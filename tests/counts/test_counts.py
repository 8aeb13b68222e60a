"""What a step costs in whole numbers is what bench/counts.json says: a commit that adds work to a step shows here."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
# I16: at most 8 calls to the driver in a decode step. One of them records the event, which the recorder does not see.
MAX_DEVICE_CALLS = 8 - 1
# torch opens text without an encoding.
WARNINGS = ("-W", "error", "-W", "ignore::EncodingWarning")


def counts(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *WARNINGS, str(BENCH / "counts.py"), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)


@pytest.fixture(scope="module")
def committed() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads((BENCH / "counts.json").read_text(encoding="utf-8"))
    return found


def test_counts_are_the_committed_ones() -> None:
    done = counts()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_change_is_named(committed: dict[str, dict[str, int]], tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    changed = copy.deepcopy(committed)
    before = changed["decode, 16 rows"]["tensors allocated"]
    changed["decode, 16 rows"]["tensors allocated"] = before - 1
    changed["scheduler, 16 running"]["decode"] *= 2
    changed["scheduler, 64 running"]["decode"] += 1  # too little to be told
    changed["decode, 1 row"].pop("graph replays")
    file.write_text(json.dumps(changed), encoding="utf-8")
    done = counts("--file", str(file))
    assert done.returncode == 1
    assert f"decode, 16 rows: tensors allocated grew from {before - 1} to {before}" in done.stdout
    assert "scheduler, 16 running: decode shrank from" in done.stdout
    assert "decode, 1 row: graph replays is new" in done.stdout
    assert done.stdout.count(" from ") == 2 and "nox -s bench -- counts --accept" in done.stdout


@pytest.mark.parametrize("case", ["decode, 1 row", "decode, 16 rows", "decode, 16 rows, sampled"])
def test_a_decode_step_makes_few_calls_to_the_device(committed: dict[str, dict[str, int]], case: str) -> None:
    assert committed[case]["graph replays"] == 1
    assert committed[case]["calls to the device"] <= MAX_DEVICE_CALLS
    assert committed[case]["tensors allocated"] == 0

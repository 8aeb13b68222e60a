"""Faults planted in the kernels are caught by the tests in the emulator; of those that are not it is known why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulator.backend import Emulator
from faults.tables import TABLES

TESTS = Path(__file__).parent
FEW = ("__syncthreads", "no rescale of the values")

pytestmark = pytest.mark.skipif(not Emulator.available(), reason="the emulator needs g++ and a POSIX system")


def plant(table: str, *phrases: str) -> None:
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "faults", table, *phrases],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("name", TABLES)
def test_tables_fit_the_sources(name: str) -> None:
    table = TABLES[name]
    faults = table.faults()
    assert len(table.survivors) <= len(faults) / 10


def test_a_few() -> None:
    plant("attention_plain", *FEW)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TABLES)
def test_all(name: str) -> None:
    plant(name)

"""Plants every fault of a table in turn and runs the table's tests: `python -m faults attention_plain [phrases]`.

Prints one line a fault; exits 1 if a fault survives that should not, or the other way round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from emulator.backend import Emulator

from faults.fault import MOVED, Fault
from faults.tables import TABLES

TESTS = Path(__file__).parent.parent
# A fault may make a kernel run for ever: it has a multiple of the time that the tests take without one.
MAX_SECONDS, PATIENCE = 900.0, 4.0


class _FirstFailure:
    """Runs all tests, the full counts last, and remembers why the first one failed."""

    reason = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.get_closest_marker("full") is not None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.reason:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E  ")]
            self.reason = f"{report.nodeid.rpartition('::')[2]}: {lines[0][1:].strip() if lines else 'failed'}"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.reason = f"collection failed: {report.longreprtext}"


def _run_tests(fault: Fault | None, tests: tuple[str, ...], folder: str, answer: Connection) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    if fault is not None:
        Emulator.planted = staticmethod(fault.apply)
    first = _FirstFailure()
    arguments = ["-x", "-q", "-m", "", "-o", f"cache_dir={folder}", *(str(TESTS / name) for name in tests)]
    code = pytest.main(arguments, plugins=[first])
    answer.send(first.reason or ("" if code == 0 else f"pytest exits with {code}"))


def reason_of_failure(fault: Fault | None, tests: tuple[str, ...], folder: str, seconds: float) -> str:
    """Why the tests fail with this fault; empty if they pass."""
    context = multiprocessing.get_context("fork")  # the emulator is for POSIX systems; importing torch takes longer
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_tests, args=(fault, tests, folder, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return f"still running after {seconds:.0f} s"
        return str(ours.recv())
    except EOFError:
        process.join()
        return f"the process ends with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def main() -> int:
    """Run one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("phrases", nargs="*", help="only faults whose names have one of these")
    options = parser.parse_args()
    table = TABLES[options.table]
    torch.set_num_threads(1)
    faults = table.faults()
    if options.phrases:
        faults = [fault for fault in faults if any(phrase in fault.name for phrase in options.phrases)]
    wrong = survived = 0
    with tempfile.TemporaryDirectory() as folder:
        seconds = MAX_SECONDS
        if not options.phrases:  # who plants a few has just seen the tests pass
            start = time.perf_counter()
            if reason := reason_of_failure(None, table.tests, folder, seconds):
                print(f"without a fault: {reason}")
                return 1
            seconds = min(seconds, 60 + PATIENCE * (time.perf_counter() - start))
        for fault in faults:
            reason = reason_of_failure(fault, table.tests, folder, seconds)
            if MOVED in reason:
                print(MOVED)
                return 1
            survived += not reason
            expected = bool(reason) != (fault.name in table.survivors)
            wrong += not expected
            outcome = f"caught    {reason[:100]}" if reason else f"survives  {table.survivors.get(fault.name, '')}"
            print(f"{'   ' if expected else '!! '}{fault.name} | {outcome}", flush=True)
    print(f"{len(faults) - survived} of {len(faults)} caught, {wrong} not as the table says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Results side by side: the table of ratios, and `wllm bench report`, which merges the files of several runs.

Refuses results of different machines: a ratio of theirs would compare the machines.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from wllm.bench.errors import BenchError
from wllm.bench.plots import plot
from wllm.bench.results import Report, Row, ratio, table
from wllm.console import say

ABSENT = "not installed"


def report(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    reports = [Report.load(path) for path in args.files]
    whole = merged(reports, [path.stem for path in args.files])
    say(f"{whole.machine}\n\n{ratios_table(whole)}")
    say("\n".join(["", *_remarks(reports, [path.stem for path in args.files])]))
    if len(reports) > 1:
        say("These are figures of several runs: " + ", ".join(f"{one.command} of {one.date}" for one in reports))
    plot(whole, args.plot)
    return 0


def merged(reports: Sequence[Report], names: Sequence[str]) -> Report:
    """One report with all rows; raises `BenchError` when they come from different machines.

    An engine that two runs measured stays two: the runs may have had different settings. The later gets its run's name.
    """
    first, *others = reports
    whole = Report(first.command, {}, first.machine, date=first.date)
    for other in others:
        if not other.machine.is_same_as(first.machine):
            raise BenchError(
                f"these results come from different machines, so no ratio of theirs means anything: {first.machine} "
                f"({first.machine.identity}), and {other.machine} ({other.machine.identity}); "
                "measure both engines on one machine"
            )
    for one, name in zip(reports, names, strict=True):
        twice = {row.engine for row in one.rows if any(row.key == other.key for other in whole.rows)}
        for row in one.rows:
            whole.add(dataclasses.replace(row, engine=f"{row.engine} ({name})") if row.engine in twice else row)
    return whole


def _remarks(reports: Sequence[Report], names: Sequence[str]) -> list[str]:
    # What all runs say is said once; what one says, under its name.
    common = [remark for remark in reports[0].remarks if all(remark in one.remarks for one in reports)]
    own = [
        f"{name}: {remark}"
        for one, name in zip(reports, names, strict=True)
        for remark in one.remarks
        if remark not in common
    ]
    return common + own


def ratios_table(whole: Report) -> str:
    """For each model: all rows, one a line, and how many times better the first engine is than each other."""
    return "\n\n".join(f"{model}\n\n{_table(whole, model)}" for model in dict.fromkeys(row.model for row in whole.rows))


def _table(whole: Report, model: str) -> str:
    rows = [row for row in whole.rows if row.model == model]
    first = rows[0].engine
    lines: list[tuple[str, ...]] = []
    for what in dict.fromkeys(row.what for row in rows):
        same = [row for row in rows if row.what == what]
        ours = next((row for row in same if row.engine == first), None)
        for row in same:
            value, spread, reached = row.cells()
            if row.error not in {None, ABSENT}:
                value = "error, see below"
            lines.append((what, row.engine, value, spread, _ratio(ours, row), reached))
    errors = [f"{row.engine}: {row.what}: {row.error}" for row in rows if row.error not in {None, ABSENT}]
    header = ("measured", "engine", "median", "range", f"{first} vs it", "floor (reached)")
    return "\n".join([table(header, lines), *errors])


def _ratio(ours: Row | None, theirs: Row) -> str:
    if ours is None or ours is theirs or ours.error is not None or theirs.error is not None:
        return ""
    return f"{ratio(ours, theirs):.2f}x"

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
    say("\n".join(["", *(remark for one in reports for remark in one.remarks)]))
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


def ratios_table(whole: Report) -> str:
    """For each model: what was measured of each engine, and how many times better the first engine is."""
    return "\n\n".join(f"{model}\n\n{_table(whole, model)}" for model in dict.fromkeys(row.model for row in whole.rows))


def _table(whole: Report, model: str) -> str:
    rows = {row.key: row for row in whole.rows if row.model == model}
    engines = [engine for engine in whole.engines if any(key[0] == engine for key in rows)]
    header = ["measured", engines[0]]
    for engine in engines[1:]:
        header += [engine, f"{engines[0]} vs {engine}"]
    lines = []
    for what in dict.fromkeys(key[2] for key in rows):
        ours = rows.get((engines[0], model, what))
        line = [what, _cell(ours)]
        for engine in engines[1:]:
            theirs = rows.get((engine, model, what))
            line += [_cell(theirs), _ratio(ours, theirs)]
        lines.append([*line, "" if ours is None else ours.cells()[2]])
    errors = [f"{row.engine}: {row.what}: {row.error}" for row in rows.values() if row.error not in {None, ABSENT}]
    return "\n".join([table([*header, f"floor (reached by {engines[0]})"], lines), *errors])


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.error is not None:
        return row.error if row.error == ABSENT else "error, see below"
    value, spread, _ = row.cells()
    return f"{value} [{spread}]" if spread else value


def _ratio(ours: Row | None, theirs: Row | None) -> str:
    if ours is None or theirs is None or ours.error is not None or theirs.error is not None:
        return ""
    return f"{ratio(ours, theirs):.2f}x"

"""`Row` and `Report`: what a benchmark measured, as a table and as JSON, and what may be said about it.

A ratio is made here and nowhere else, and only between rows of one machine that measured the same thing without error.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from wllm.bench.errors import BenchError
from wllm.bench.machine import Machine

FORMAT = 1

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured of one engine. `samples` are the repeats, in `unit`; no sample only with an `error`.

    `floor` is what the hardware allows at best, in the same unit, where that is known. `what` says all that the figure
    depends on but engine, model and machine.
    """

    engine: str
    what: str
    unit: str
    samples: tuple[float, ...] = ()
    better: Better = "lower"
    floor: float | None = None
    note: str = ""
    error: str | None = None
    model: str = ""

    def __post_init__(self) -> None:
        if bool(self.samples) == bool(self.error):
            raise BenchError(
                f"the row {self.what!r} of {self.engine} has {len(self.samples)} samples and error {self.error!r}; "
                "give it samples, or the error that stands for them"
            )
        wrong = [sample for sample in self.samples if not (math.isfinite(sample) and sample > 0)]
        if wrong:
            raise BenchError(
                f"the row {self.what!r} of {self.engine} measured {wrong} {self.unit}, which no clock shows; "
                "measure longer: more tokens, more repeats"
            )

    @property
    def key(self) -> tuple[str, str, str]:
        """Rows of one key are repeats of each other."""
        return self.engine, self.model, self.what

    @property
    def value(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    def and_samples(self, samples: Sequence[float]) -> Row:
        """The same row with more repeats."""
        return dataclasses.replace(self, samples=(*self.samples, *samples))

    def cells(self) -> tuple[str, str, str]:
        """(median, range of the repeats, fraction of the floor) as text."""
        if self.error is not None:
            return self.error, "", ""
        several = len(self.samples) > 1
        spread = f"{_number(min(self.samples))} to {_number(max(self.samples))}" if several else ""
        if self.floor is None:
            reached = ""
        else:
            share = self.floor / self.value if self.better == "lower" else self.value / self.floor
            reached = f"{_number(self.floor)} ({share:.0%})"
        return f"{_number(self.value)} {self.unit}", spread, reached

    def line(self) -> str:
        """The row by itself, for a terminal in which the table is still to come."""
        value, spread, reached = self.cells()
        told = [value, spread and f"range {spread}", reached and f"floor {reached}"]
        return f"{self.engine}: {self.what}: {', '.join(filter(None, told))}"


@dataclass(slots=True)
class Report:
    """The rows of one run of a command on one machine, with the options that gave them; `remarks` explain them."""

    command: str
    options: Mapping[str, Any]
    machine: Machine
    rows: list[Row] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    remarks: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Append a row, or add its samples to the one of the same key; an error outweighs samples."""
        for index, old in enumerate(self.rows):
            if old.key == row.key:
                both = old.error is None and row.error is None
                self.rows[index] = old.and_samples(row.samples) if both else old if old.error is not None else row
                return
        self.rows.append(row)

    @property
    def engines(self) -> list[str]:
        """In the order of their first rows."""
        return list(dict.fromkeys(row.engine for row in self.rows))

    def save(self, path: Path) -> None:
        """Write as JSON; the file is whole at any time, so a run that is cut short leaves what it had."""
        content = {
            "format": FORMAT,
            "command": self.command,
            "date": self.date,
            "machine": self.machine.to_json(),
            "options": dict(self.options),
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "remarks": self.remarks,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.part")
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read what `save` wrote; raises `BenchError` for another file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}")
            return cls(
                command=content["command"],
                options=content["options"],
                machine=Machine.from_json(content["machine"]),
                rows=[Row(**{**row, "samples": tuple(row["samples"])}) for row in content["rows"]],
                date=content["date"],
                remarks=content["remarks"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BenchError(
                f"{path} is no result of this version of wllm bench ({type(error).__name__}: {error}); "
                "give files that --json wrote"
            ) from error


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The flags that a command ran with, as plain data."""
    skipped = {"run", "command", "bench_command", "version"}
    options = {name: value for name, value in vars(args).items() if name not in skipped}
    return {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}


def ratio(ours: Row, theirs: Row) -> float:
    """How many times better `ours` is: above 1 it is faster, or smaller, than `theirs`."""
    if (ours.what, ours.model, ours.unit, ours.better) != (theirs.what, theirs.model, theirs.unit, theirs.better):
        raise BenchError(
            f"a ratio of {ours.what!r} of {ours.model} in {ours.unit} and {theirs.what!r} of {theirs.model} in "
            f"{theirs.unit} means nothing; compare rows of the same thing"
        )
    if ours.error is not None or theirs.error is not None:
        raise BenchError(f"no ratio for {ours.what!r}: {ours.error or theirs.error}; fix that engine and measure again")
    return theirs.value / ours.value if ours.better == "lower" else ours.value / theirs.value


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; columns without any cell are left out."""
    lines = [list(header), *([str(cell) for cell in row] for row in rows)]
    used = [i for i in range(len(header)) if not rows or any(line[i] for line in lines[1:])]
    lines = [[line[i] for i in used] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def rows_table(report: Report) -> str:
    """All rows, one a line: engine, what, median, range, floor (and the fraction reached), note."""
    rows = [(row.engine, row.what, *row.cells(), row.note) for row in report.rows]
    return table(("engine", "measured", "median", "range", "floor (reached)", "note"), rows)


def _number(value: float) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"

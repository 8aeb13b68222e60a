"""Plots of a report, PNG and SVG, by matplotlib, which comes with `pip install wllm[bench]`."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from wllm.bench.errors import BenchError
from wllm.bench.results import Report, Row
from wllm.console import say

_COLUMNS = 3
_PANEL_INCHES = (4.2, 2.6)


def check_plots(folder: Path | None) -> None:
    """Raises `BenchError` when plots are wanted and cannot be made; called before a long run, not after it."""
    if folder is not None:
        _matplotlib()


def plot(report: Report, folder: Path | None) -> list[Path]:
    """One figure a model, a panel for each thing measured, a bar for each engine; the files written, if any are wanted.

    Says which they are. Raises `BenchError` where matplotlib is missing.
    """
    if folder is None:
        return []
    figures = _matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for model in dict.fromkeys(row.model for row in report.rows):
        figure = _figure(figures, report, model)
        name = re.sub(r"[^\w.-]+", "-", f"{report.command}-{model}".strip("-"))
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            figure.savefig(path, dpi=150)
            written.append(path)
            say(f"written: {path}")
    return written


def _matplotlib() -> Any:
    try:
        # Figures alone: pyplot would look for a display.
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise BenchError(f"--plot needs matplotlib ({error}); pip install wllm[bench]") from error


def _figure(figures: Any, report: Report, model: str) -> Any:
    panels: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.model == model and row.error is None:
            panels.setdefault(row.what, []).append(row)
    if not panels:
        raise BenchError(
            f"every row of {model or 'the report'} is an error, so there is nothing to plot; see the table"
        )
    lines = -(-len(panels) // _COLUMNS)
    width, height = _PANEL_INCHES
    figure = figures.Figure(figsize=(width * _COLUMNS, height * lines + 0.6), layout="constrained")
    figure.suptitle(f"{model}\n{'; '.join(report.machine.gpus) or report.machine.cpu}", fontsize=9)
    axes = figure.subplots(lines, _COLUMNS, squeeze=False).flat
    for axis, (what, rows) in zip(axes, panels.items(), strict=False):
        _panel(axis, what, rows, report.engines)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure


def _panel(axis: Any, what: str, rows: list[Row], engines: list[str]) -> None:
    values = [row.value for row in rows]
    below = [row.value - min(row.samples) for row in rows]
    above = [max(row.samples) - row.value for row in rows]
    colors = [f"C{engines.index(row.engine)}" for row in rows]  # an engine has one color in all panels
    bars = axis.barh([row.engine for row in rows], values, xerr=(below, above), color=colors)
    axis.bar_label(bars, [f" {row.cells()[0]}" for row in rows], fontsize=7)
    axis.margins(x=0.4)  # for the figures beside the bars
    axis.invert_yaxis()
    floor = next((row.floor for row in rows if row.floor is not None), None)
    if floor is not None:
        axis.axvline(floor, color="black", linestyle=":", linewidth=1)
    axis.set_title(what, fontsize=8)
    axis.set_xlabel(
        f"{rows[0].unit}, {rows[0].better} is better" + ("" if floor is None else "; dotted: floor"), fontsize=7
    )
    axis.tick_params(labelsize=7)

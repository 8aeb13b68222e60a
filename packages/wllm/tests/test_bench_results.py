"""Rows and reports of `wllm bench`: what is kept, what is merged, and which ratios are refused."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from wllm.bench import machine
from wllm.bench.errors import BenchError
from wllm.bench.machine import Machine
from wllm.bench.merge import merged, ratios_table
from wllm.bench.results import Report, Row, ratio
from wllm.cli import main

HERE = Machine(
    identity="one", gpus=("GPU",), driver="580", cpu="CPU", num_cpus=2, system="Linux", python="3.11", torch="2.13"
)
RATIO = re.compile(r"\d\.\d\dx")
ELSEWHERE = dataclasses.replace(HERE, identity="other")


def report(*rows: Row, machine: Machine = HERE) -> Report:
    return Report("compare", {"seed": 0, "json": "x.json"}, machine, list(rows), date="2026-01-02T03:04:05+00:00")


def step(engine: str, *samples: float, **more: object) -> Row:
    return Row(engine, "step", "ms", samples, **more)  # type: ignore[arg-type]


def test_the_value_is_the_median() -> None:
    assert step("a", 9.0, 1.0, 2.0).value == 2.0


@pytest.mark.parametrize("samples", [(), (1.0, 0.0), (-0.1,), (float("nan"),), (float("inf"),)])
def test_what_no_clock_shows_is_no_row(samples: tuple[float, ...]) -> None:
    with pytest.raises(BenchError):
        step("a", *samples)


@pytest.mark.parametrize(("row", "line"), [
    (step("a", 4.0, 2.0, 8.0, floor=1.0), "a: step: 4.00 ms, range 2.00 to 8.00, floor 1.00 (25%)"),
    (step("a", 4.0), "a: step: 4.00 ms"),
    (step("a", error="died"), "a: step: died"),
])  # fmt: skip
def test_a_row_by_itself_names_its_figures(row: Row, line: str) -> None:
    assert row.line() == line


def test_a_row_has_samples_or_an_error() -> None:
    with pytest.raises(BenchError, match="samples"):
        step("a", 1.0, error="died")


def test_repeats_join_and_rows_of_another_model_do_not() -> None:
    whole = report()
    whole.add(step("a", 1.0, model="m"))
    whole.add(step("a", 3.0, model="m"))
    whole.add(step("a", 5.0, model="n"))
    assert [row.samples for row in whole.rows] == [(1.0, 3.0), (5.0,)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_error_outweighs_samples(order: tuple[int, int]) -> None:
    """Else an engine that died in the second round would be judged by the first."""
    rows = (step("a", 1.0), step("a", error="died"))
    whole = report()
    for index in order:
        whole.add(rows[index])
    assert [row.error for row in whole.rows] == ["died"]


def test_files_hold_everything(tmp_path: Path) -> None:
    whole = report(step("a", 1.0, 2.0, floor=0.5, note="n", model="m"), step("b", error="not installed"))
    whole.remarks.append("a remark")
    whole.save(tmp_path / "new folder" / "result.json")
    assert Report.load(tmp_path / "new folder" / "result.json") == whole
    assert [path.name for path in (tmp_path / "new folder").iterdir()] == ["result.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99}', "[1]"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=r"other\.json"):
        Report.load(tmp_path / "other.json")


def test_a_ratio_says_how_many_times_better() -> None:
    assert ratio(step("a", 2.0), step("b", 3.0)) == 1.5
    assert ratio(step("a", 2.0, better="higher"), step("b", 4.0, better="higher")) == 0.5


@pytest.mark.parametrize(
    "theirs",
    [
        Row("b", "another step", "ms", (1.0,)),
        Row("b", "step", "s", (1.0,)),
        Row("b", "step", "ms", (1.0,), "higher"),
        Row("b", "step", "ms", (1.0,), model="another"),
        Row("b", "step", "ms", error="died"),
    ],
)
def test_ratios_that_mean_nothing_are_refused(theirs: Row) -> None:
    with pytest.raises(BenchError):
        ratio(step("a", 1.0), theirs)


def test_results_of_two_machines_are_refused() -> None:
    with pytest.raises(BenchError, match="different machines"):
        merged([report(step("a", 1.0)), report(step("b", 1.0), machine=ELSEWHERE)], ["x", "y"])


def test_software_does_not_make_another_machine() -> None:
    """WSL2 and its Windows host, or two environments, are one machine."""
    windows = dataclasses.replace(HERE, system="Windows", python="3.12", torch=None, cpu="another name of it")
    table = ratios_table(merged([report(step("a", 1.0)), report(step("b", 2.0), machine=windows)], ["x", "y"]))
    assert "2.00x" in table


def test_the_report_command_refuses_two_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(step("a", 1.0)).save(tmp_path / "a.json")
    report(step("b", 1.0), machine=ELSEWHERE).save(tmp_path / "b.json")
    assert main(["bench", "report", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    seen = capsys.readouterr()
    assert "different machines" in seen.err
    assert not RATIO.search(seen.out)


def test_two_runs_of_one_engine_stay_two() -> None:
    whole = merged([report(step("a", 1.0)), report(step("a", 4.0))], ["first", "second"])
    assert {row.engine: row.samples for row in whole.rows} == {"a": (1.0,), "a (second)": (4.0,)}


def test_more_engines_make_the_table_longer_not_wider() -> None:
    rows = [step(f"engine {number}", 1.0, 2.0, floor=0.5) for number in range(5)]
    two, five = (ratios_table(report(*rows[:number])).splitlines() for number in (2, 5))
    assert {len(line) for line in two[2:]} == {len(line) for line in five[2:]}
    assert [line.count("1.00x") for line in five] == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_what_runs_have_in_common_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, remark in (("x", "10 steps"), ("y", "20 steps")):
        one = report(step(name, 1.0))
        one.remarks += ["the method", remark]
        one.save(tmp_path / f"{name}.json")
    assert main(["bench", "report", str(tmp_path / "x.json"), str(tmp_path / "y.json")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "method" in line or "steps" in line]
    assert said == [
        "the method",
        "x: 10 steps",
        "y: 20 steps",
    ]


def test_an_error_has_no_ratio_in_the_table() -> None:
    table = ratios_table(report(step("a", 1.0), step("b", error="died: its process ended")))
    assert "1.00 ms" in table
    assert not RATIO.search(table)
    assert "b: step: died: its process ended" in table


def test_this_machine_is_itself() -> None:
    here = Machine.here()
    assert here.is_same_as(Machine.from_json(here.to_json()))
    assert here.num_cpus >= 1
    assert here.torch is not None


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra wllm[bench]")
    from wllm.bench.plots import plot

    rows = [step("a", 1.0, 1.5, floor=0.5, model="m"), step("b", 2.0, model="m"), step("c", error="died", model="m")]
    files = plot(report(*rows), tmp_path / "plots")
    assert [path.name for path in files] == ["compare-m.png", "compare-m.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in files[1].read_text(encoding="utf-8")


def test_plots_without_matplotlib_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wllm.bench.plots import check_plots, plot

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for work in (lambda: check_plots(tmp_path), lambda: plot(report(step("a", 1.0)), tmp_path)):
        with pytest.raises(BenchError, match=r"pip install wllm\[bench\]"):
            work()
    check_plots(None)
    assert plot(report(step("a", 1.0)), None) == []


def test_one_gpu_is_one_machine_whatever_the_system_calls_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nvidia-smi": "GPU X, GPU-1234, 580.95, 8192 MiB, 170.00 W, 1800 MHz\n",
        "lscpu": "Model name:  One CPU\n",
    }
    monkeypatch.setattr(machine, "_output_of", lambda program, *arguments: answers[program])
    linux = Machine.here()
    assert linux.cpu == "One CPU"
    assert linux.gpus == ("GPU X, 8192 MiB, 170.00 W, 1800 MHz",)
    answers["lscpu"] = ""
    windows = Machine.here()
    assert windows.cpu != linux.cpu
    assert windows.is_same_as(linux)
    answers["nvidia-smi"] = answers["nvidia-smi"].replace("1234", "5678")
    assert not Machine.here().is_same_as(linux)
    assert "1234" not in str(linux.to_json())


def test_gpu_memory_is_that_of_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_output_of", lambda program, *arguments: "1 MiB\n3 MiB\n")
    assert machine.gpu_memory_used() == 4 << 20

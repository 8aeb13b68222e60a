"""`wllm bench compare`: engines in processes of their own. vLLM is played by a package that takes a known time."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import psutil
import pytest

from wllm.bench.contestants import Common, Contestant, contestants
from wllm.bench.errors import BenchError
from wllm.bench.floor import Floor
from wllm.bench.measure import DecodeStep, FirstToken
from wllm.bench.merge import ratios_table
from wllm.bench.race import START, OutOfTime, Race
from wllm.bench.results import Report, Row
from wllm.bench.workers import Worker, WorkerError
from wllm.cli import build_parser, main

# Its time grows with the tokens, far more than a busy machine's clock jitters. It prints on standard output, as vLLM
# does. FAULT says what goes wrong, and FAULT_AT after how many calls.
STAND_IN = """
import os, subprocess, sys, time

__version__ = "9.9"
FAULT, FAULT_AT = os.environ.get("FAULT"), int(os.environ.get("FAULT_AT", "0"))


class SamplingParams:
    def __init__(self, *, temperature, max_tokens, ignore_eos, detokenize):
        assert temperature == 0 and ignore_eos and not detokenize
        self.max_tokens = max_tokens


class Answer:
    def __init__(self, length):
        self.token_ids = [0] * length


class Output:
    def __init__(self, length):
        self.outputs = [Answer(length)]


class LLM:
    def __init__(self, *, model, **options):
        print("INFO starting", options)
        if FAULT == "start":
            raise ValueError("no such GPU")
        if FAULT == "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            print("child", child.pid, flush=True)
        self.calls = 0

    def generate(self, prompts, params, use_tqdm):
        self.calls += 1
        if self.calls > FAULT_AT:
            if FAULT in {"die", "child"}:
                print("RuntimeError: CUDA error: an illegal memory access")
                sys.stdout.flush()
                os._exit(3)
            if FAULT == "raise":
                raise RuntimeError("out of memory")
            if FAULT == "short":
                return [Output(each.max_tokens - 1) for each in params]
            if FAULT == "hang":
                time.sleep(600)
        assert all(prompt.keys() == {"prompt_token_ids"} for prompt in prompts)
        time.sleep(0.012 * max(each.max_tokens for each in params))
        return [Output(each.max_tokens) for each in params]
"""
# Checks that each token but the last is evaluated once, after what came before it.
LLAMA_CPP = """
class Llama:
    def __init__(self, *, model_path, n_ctx):
        assert (model_path, n_ctx) == ("m.gguf", 64)

    def reset(self):
        self.seen = []

    def eval(self, tokens):
        assert not self.seen or tokens == [100 + len(self.seen)], (self.seen, tokens)
        self.seen += tokens

    def sample(self, *, temp):
        assert temp == 0
        return 100 + len(self.seen)

    def close(self):
        pass
"""
RATIO = re.compile(r"\d\.\d\dx")
MEASUREMENTS = [DecodeStep(2, 4, 11), FirstToken(8)]


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH that holds the package `vllm`."""
    (tmp_path / "site" / "vllm").mkdir(parents=True)
    (tmp_path / "site" / "vllm" / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    return tmp_path / "site"


def contestant(site: Path, name: str = "vllm", **environment: str) -> Contestant:
    environment["PYTHONPATH"] = str(site)
    return Contestant(name, name.partition("@")[0], sys.executable, environment, {}, "any", only="")


def race(tmp_path: Path, report: Report, minutes: float = 5.0) -> Race:
    floor = Floor(1, 1, 1e9)
    return Race(
        model="m",
        vocab_size=1000,
        seed=0,
        repeats=2,
        floor=floor,
        logs=tmp_path,
        minutes=minutes,
        enter=report.add,
        remark=report.remarks.append,
    )


@pytest.fixture
def report() -> Report:
    from wllm.bench.machine import Machine

    return Report("compare", {}, Machine.here())


def rows_of(report: Report, engine: str) -> dict[str, Row]:
    return {row.what: row for row in report.rows if row.engine == engine}


def test_together_engines_take_turns_and_stay_loaded(tmp_path: Path, stand_in: Path, report: Report) -> None:
    seen: list[tuple[str, str]] = []
    one = race(tmp_path, report)
    one.enter = lambda row: (seen.append((row.engine, row.what)), report.add(row)) and None
    one.run_together([contestant(stand_in), contestant(stand_in, "vllm@b")], MEASUREMENTS, rounds=2)
    step, first = (measurement.what for measurement in MEASUREMENTS)
    turns = [("vllm", step), ("vllm@b", step), ("vllm", first), ("vllm@b", first)]
    assert [entry for entry in seen if entry[1] in {step, first}] == turns * 2
    rows = rows_of(report, "vllm")
    assert len(rows[START].samples) == 1 and "9.9" in rows[START].note
    assert len(rows[step].samples) == 4
    assert rows[step].floor is not None


def test_in_turn_each_round_starts_anew(tmp_path: Path, stand_in: Path, report: Report) -> None:
    race(tmp_path, report).run_in_turn([contestant(stand_in)], MEASUREMENTS, rounds=2)
    rows = rows_of(report, "vllm")
    assert len(rows[START].samples) == 2
    assert len(rows[MEASUREMENTS[0].what].samples) == 4


@pytest.mark.parametrize("fault", ["die", "raise", "short"])
def test_a_fault_is_an_error_and_never_a_ratio(tmp_path: Path, stand_in: Path, report: Report, fault: str) -> None:
    """In the second round, when there are good samples already."""
    calls = 1 + (1 + 2 * 2) + (1 + 2)  # the first answer, then warm-up and samples of both measurements
    faulty = contestant(stand_in, FAULT=fault, FAULT_AT=str(calls))
    race(tmp_path, report).run_together([contestant(stand_in, "vllm@good"), faulty], MEASUREMENTS, rounds=2)
    good, bad = rows_of(report, "vllm@good"), rows_of(report, "vllm")
    for measurement in MEASUREMENTS:
        assert len(good[measurement.what].samples) == 4
        assert bad[measurement.what].error is not None
    table = ratios_table(report)
    with_ratio = [line.split("|")[1].strip() for line in table.splitlines() if RATIO.search(line)]
    assert with_ratio == [START, "first answer after start"]


def test_a_dead_engine_says_what_it_last_said(tmp_path: Path, stand_in: Path, report: Report) -> None:
    race(tmp_path, report).run_together([contestant(stand_in, FAULT="die")], MEASUREMENTS, rounds=1)
    error = rows_of(report, "vllm")[MEASUREMENTS[0].what].error
    assert error is not None
    assert "code 3" in error and "illegal memory access" in error


def test_an_engine_that_cannot_start_is_a_row(tmp_path: Path, stand_in: Path, report: Report) -> None:
    race(tmp_path, report).run_in_turn([contestant(stand_in, FAULT="start")], MEASUREMENTS, rounds=3)
    (row,) = report.rows
    assert row.what == START and row.error == "failed: ValueError: no such GPU"


def test_an_engine_that_is_not_there_is_a_row(tmp_path: Path, report: Report) -> None:
    (tmp_path / "empty").mkdir()
    absent = contestant(tmp_path / "empty")
    race(tmp_path, report).run_in_turn([absent], MEASUREMENTS, rounds=3)
    (row,) = report.rows
    assert row.error == "not installed"


def test_only_the_rows_asked_for(tmp_path: Path, stand_in: Path, report: Report) -> None:
    entry = contestant(stand_in)
    race(tmp_path, report).run_in_turn(
        [Contestant(entry.name, entry.engine, entry.python, entry.environment, {}, "any", only="first token")],
        MEASUREMENTS,
        rounds=1,
    )
    assert [row.what for row in report.rows] == [START, "first answer after start", "first token of 8"]


def test_no_time_no_start(tmp_path: Path, stand_in: Path, report: Report) -> None:
    with pytest.raises(OutOfTime):
        race(tmp_path, report, minutes=0.0).run_together([contestant(stand_in)], MEASUREMENTS, rounds=1)
    assert report.rows == []


@pytest.fixture
def worker(tmp_path: Path, stand_in: Path, request: pytest.FixtureRequest) -> Iterator[Worker]:
    environment = {"PYTHONPATH": str(stand_in), **request.param}
    worker = Worker("vllm", sys.executable, environment, tmp_path / "log", limit_s=60.0)
    worker.ask("start", engine="vllm", model="any", options={})
    worker.limit_s = 2.0
    yield worker
    worker.close()


@pytest.mark.parametrize("worker", [{"FAULT": "hang"}], indirect=True)
def test_a_worker_that_hangs_is_ended(worker: Worker) -> None:
    begin = perf_counter()
    with pytest.raises(WorkerError, match="no answer within 2 s"):
        worker.generate([[1]], [1])
    with pytest.raises(WorkerError):
        worker.generate([[1]], [1])
    assert perf_counter() - begin < 30


@pytest.mark.parametrize("worker", [{"FAULT": "child"}], indirect=True)
def test_children_of_a_dead_worker_are_ended(worker: Worker, tmp_path: Path) -> None:
    (line,) = [line for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines() if line.startswith("child")]
    child = psutil.Process(int(line.split()[1]))
    with pytest.raises(WorkerError):
        worker.generate([[1]], [1])
    child.wait(10)


def test_llama_cpp_answers_one_request_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text(LLAMA_CPP, encoding="utf-8")
    worker = Worker("llama.cpp", sys.executable, {"PYTHONPATH": str(tmp_path)}, tmp_path / "log", limit_s=60.0)
    try:
        worker.ask("start", engine="llama.cpp", model="m.gguf", options={"n_ctx": 64})
        assert worker.generate([[7, 8, 9]], [4]) > 0
        assert worker.generate([[5]], [1]) > 0
        with pytest.raises(WorkerError, match="one request at a time") as caught:
            worker.generate([[1], [2]], [1, 1])
        assert caught.value.kind == "unsupported"
    finally:
        worker.close()


def options(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["bench", "compare", *arguments])


COMMON = Common(model="m", device="cuda", dtype="bfloat16", dummy=True, max_model_len=4096, num_seqs=128)


def test_flags_of_one_contestant_do_not_reach_another() -> None:
    args = options(
        *("--engines", "wllm,vllm,vllm@b", "--kv-tokens", "33", "--python", "vllm=other"),
        *("--env", "vllm:A=1", "--env", "vllm@b:A=2=3", "--option", 'vllm@b:attention_config={"backend": "X"}'),
    )
    ours, theirs, labelled = contestants(args, COMMON)
    assert (ours.options["num_kv_blocks"], ours.environment, ours.python) == (3, {}, sys.executable)
    assert (theirs.options["num_gpu_blocks_override"], theirs.environment, theirs.python) == (3, {"A": "1"}, "other")
    assert labelled.environment == {"A": "2=3"}
    assert labelled.options["attention_config"] == {"backend": "X"}
    assert "attention_config" not in theirs.options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engines", "wllm,sglang"), "no engine 'sglang'"),
        (("--engines", "wllm,wllm"), "twice"),
        (("--engines", "wllm", "--env", "vllm:A=1"), "for none of"),
        (("--engines", "wllm", "--option", "wllm:a=text"), "no JSON"),
    ],
)
def test_wrong_flags_are_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        contestants(options(*arguments), COMMON)


def test_the_whole_command(tmp_path: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """wLLM itself, the stand-in, and transformers, on a CPU."""
    arguments = [
        *("bench", "compare", "--shape", "tiny", "--device", "cpu", "--engines", "wllm,vllm,transformers,llama.cpp"),
        *("--max-model-len", "1024"),
        *("--batches", "2", "--prompt-len", "8", "--output-len", "8", "--first-token-len", "32", "--prefill", "2x16"),
        *("--num-requests", "4", "--longest", "12", "--kv-tokens", "2048", "--rounds", "1", "--repeats", "2"),
        *("--together", "--env", f"vllm:PYTHONPATH={stand_in}", "--json", str(tmp_path / "result.json")),
        *("--logs", str(tmp_path / "logs")),
    ]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    report = Report.load(tmp_path / "result.json")
    assert {row.model for row in report.rows} == {"tiny float32"}
    errors = {row.engine: row.error for row in report.rows if row.error is not None}
    assert errors == {"llama.cpp": "not installed"}
    whats = {engine: {row.what for row in report.rows if row.engine == engine} for engine in report.engines}
    assert len(whats["wllm"]) == 6
    assert whats["wllm"] == whats["vllm"] == whats["transformers"]
    assert len(RATIO.findall(table)) == 12
    assert "copy bandwidth" in table
    assert any(remark.startswith("wllm: ") and "steps" in remark for remark in report.remarks)
    assert "INFO starting" in (tmp_path / "logs" / "vllm.log").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["options"]["rounds"] == 1
    assert os.environ.get("FAULT") is None

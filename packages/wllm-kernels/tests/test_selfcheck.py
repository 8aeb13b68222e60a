"""The self-check: it passes what agrees, tells every op that does not, and runs device code where there is some."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch
from emulator.backend import Emulator

from wllm_kernels import dispatch
from wllm_kernels.dispatch import OPS, Op
from wllm_kernels.selfcheck import timing
from wllm_kernels.selfcheck.checks import NAMES, run_checks
from wllm_kernels.selfcheck.timing import LaunchTimes, launch_times

# torch's own product on a CPU rounds as it likes, so that `linear` is for GPUs alone.
ON_A_CPU = [name for name in NAMES if name != "linear"]
CHECKED_BY = {
    dispatch.paged_attention: ("attention_decode", "attention_mixed", "attention_quantised", "attention_float32"),
    dispatch.rope_kv_write: ("rope",),
    dispatch.rms_norm: ("norm",),
    dispatch.act_mul: ("activation",),
    dispatch.prepare_step: ("step",),
    dispatch.append_blocks: ("step",),
    dispatch.advance_step: ("step",),
    dispatch.copy_blocks: ("blocks",),
    dispatch.swap_blocks: ("blocks",),
    dispatch.sample: ("sample",),
    dispatch.logprobs: ("logprobs",),
}


def test_every_op_has_a_check() -> None:
    assert {*CHECKED_BY, dispatch.skinny_linear} == set(OPS)
    assert {name for names in CHECKED_BY.values() for name in names} == set(ON_A_CPU)


def test_what_agrees_passes() -> None:
    results = list(run_checks("cpu", ON_A_CPU))
    assert [(result.name, result.error) for result in results] == [(name, "") for name in ON_A_CPU]


@pytest.mark.parametrize("op", CHECKED_BY, ids=lambda op: op.name)
def test_an_op_that_writes_nothing_is_told_and_the_others_go_on(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    function, calls = op._functions["cpu"], 0

    def lazy(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        # The expected tokens and log-probabilities are those of the op on the CPU, each time before the device's.
        if op in (dispatch.sample, dispatch.logprobs) and calls % 2:
            function(*arguments)

    monkeypatch.setitem(op._functions, "cpu", lazy)
    monkeypatch.setattr(torch, "empty", torch.zeros)  # not what the last call left there
    results = {result.name: result.error for result in run_checks("cpu", [*CHECKED_BY[op], "norm", "activation"])}
    failed = {name for name, error in results.items() if error}
    assert failed == set(CHECKED_BY[op])
    assert all("AssertionError" in results[name] for name in failed)


@pytest.mark.parametrize("name", ["norm", "step", "blocks"])
def test_device_code_agrees(name: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for op in OPS:
        monkeypatch.setitem(op._functions, "cpu", op._functions["cuda"])
    (result,) = run_checks("cpu", [name])
    assert not result.error and result.launches > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_machine_without_a_gpu_has_nothing_to_check() -> None:
    command = [sys.executable, "-m", "wllm_kernels.selfcheck"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 1 and "sees no NVIDIA GPU" in done.stderr and "agree" not in done.stdout


@pytest.mark.full  # all of torch is compiled once more
def test_checks_that_python_leaves_out_are_no_pass() -> None:
    code = "from wllm_kernels.selfcheck.checks import run_checks; print(list(run_checks('cpu', ['norm'])))"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 1 and "python -O leaves out" in done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")
def test_a_graph_launches_what_single_calls_launch() -> None:
    times = launch_times()
    assert 0 < times.graph_us < 1e4 and 0 < times.single_us < 1e4


def test_launches_are_timed_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def pass_on(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    class Graph:
        def replay(self) -> None:
            pass_on(400e-6)  # and what is left in the queue takes as long again

    monkeypatch.setattr(timing, "perf_counter", lambda: clock)
    monkeypatch.setattr(timing, "rms_norm", lambda *_: pass_on(5e-6))
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(1))
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pass_on(400e-6))
    assert launch_times() == LaunchTimes(pytest.approx(6.0), pytest.approx(2.0))

"""`wllm doctor --kernels`: what it says of kernels that agree, disagree, or end their process; and how it asks."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from wllm.cli import main
from wllm.doctor import examination, facts, kernel_probe, probe
from wllm.doctor.checks.results import results
from wllm.doctor.facts import CheckedKernels, Facts, KernelChecks, TimedLaunches, Torch, TorchGpu, check_kernels
from wllm.doctor.finding import Finding, Verdict
from wllm.doctor.probe import Asked
from wllm_kernels.selfcheck import checks, timing
from wllm_kernels.selfcheck.checks import Result
from wllm_kernels.selfcheck.timing import LaunchTimes

TWO_GPUS = Torch("2.13.0", "13.0", gpus=(TorchGpu("RTX 2060"), TorchGpu("RTX 4070")))
NORM, ROPE = CheckedKernels(0, "norm", 12, 0.5, ""), CheckedKernels(0, "rope", 30, 1.0, "")
WRONG = CheckedKernels(1, "norm", 12, 0.5, "AssertionError: Tensor-likes\n\n  are not close")


def found(
    checked: tuple[CheckedKernels, ...], problem: str = "", timed: tuple[TimedLaunches, ...] = ()
) -> list[Finding]:
    return list(results(Facts(torch=lambda: TWO_GPUS, kernels=lambda: KernelChecks(checked, problem, timed))))


def test_each_gpu_has_a_line() -> None:
    good, bad = found((NORM, ROPE, WRONG))
    assert (good.check, good.verdict) == ("kernels' results, GPU 0", Verdict.OK)
    assert good.seen == "RTX 2060: 2 checks agree, 42 launches, 1.5 s"
    assert (bad.check, bad.verdict) == ("kernels' results, GPU 1", Verdict.PROBLEM)
    (*_, times) = found((NORM, ROPE, WRONG), timed=(TimedLaunches(1, 31.25, 2.04),))
    assert (times.check, times.seen) == ("launches, GPU 1", "31.2 us a kernel one by one, 2.0 us from a CUDA graph")
    assert bad.seen == "norm: AssertionError: Tensor-likes are not close" and "NVIDIA driver" in bad.fix


@pytest.mark.parametrize(
    ("checked", "problem", "words"),
    [
        ((NORM,), "ended with code -11", "ended with code -11 after norm on GPU 0"),
        ((), "ended with code 1 ImportError: no wllm_kernels", "no wllm_kernels"),
        ((), "", "said nothing"),
    ],
)
def test_a_process_that_ends_early_is_a_problem(checked: tuple[CheckedKernels, ...], problem: str, words: str) -> None:
    last = found(checked, problem)[-1]
    assert last.verdict is Verdict.PROBLEM and words in last.seen


@pytest.mark.parametrize(
    "torch",
    [
        Torch("2.13.0+cpu"),
        Torch("2.13.0", "13.0", problem="WLLM_KERNELS=reference is set", gpus=TWO_GPUS.gpus),
        Torch("2.13.0", "13.0", gpus=(TorchGpu("GTX 1080", "is older than all code"),)),
    ],
)
def test_where_no_kernel_can_run_none_does(torch: Torch) -> None:
    def never() -> KernelChecks:
        raise AssertionError("was asked")

    (only,) = results(Facts(torch=lambda: torch, kernels=never))
    assert only.verdict is Verdict.NOTE and "nothing ran" in only.seen and torch.problem in only.reason


def test_a_gpu_without_code_has_its_own_check() -> None:
    torch = Torch("2.13.0", "13.0", gpus=(TWO_GPUS.gpus[0], TorchGpu("GTX 1080", "is older than all code")))
    (only,) = results(Facts(torch=lambda: torch, kernels=lambda: KernelChecks((NORM, WRONG))))
    assert (only.check, only.verdict) == ("kernels' results, GPU 0", Verdict.OK)


def test_the_probe_tells_every_check_of_every_gpu(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    good = [Result("norm", 12, 0.5, ""), Result("rope", 30, 1.0, "")]
    ran = iter([good, [Result("norm", 12, 0.5, "wrong"), good[1]]])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(checks, "run_checks", lambda: next(ran))
    monkeypatch.setattr(timing, "launch_times", lambda: LaunchTimes(9.0, 2.0))
    kernel_probe.main()
    answers = probe._answers(capsysbinary.readouterr().out)
    monkeypatch.setattr(facts, "ask", lambda *_: Asked(answers))
    checked = (NORM, ROPE, replace(NORM, gpu=1, error="wrong"), replace(ROPE, gpu=1))
    assert check_kernels() == KernelChecks(checked, timed=(TimedLaunches(0, 9.0, 2.0),))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_the_probe_has_nothing_to_tell_without_a_gpu() -> None:
    assert check_kernels() == KernelChecks()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")
def test_the_kernels_of_this_gpu_agree() -> None:
    checked = check_kernels()
    assert not checked.problem and {each.name for each in checked.checked} == set(checks.NAMES)
    assert [each for each in checked.checked if each.error or not each.launches] == []
    assert len(checked.timed) == torch.cuda.device_count()


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        ("", ""),
        ("import os; os._exit(3)", "ended with code 3"),
        ("raise ValueError('too bad')", "ended with code 1 ValueError: too bad"),
    ],
)
def test_what_was_told_before_the_end_counts(
    ending: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"from wllm.doctor.probe import tell\nprint('noise', end='')\ntell({{'debug': __debug__}})\n{ending}\n"
    (tmp_path / "talker.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    assert probe.ask("talker", 60) == Asked([{"debug": True}], problem)


def test_what_was_told_before_the_time_was_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout, output=b'noise\nanswer: {"gpu": 0}\n')

    monkeypatch.setattr(subprocess, "run", hang)
    assert probe.ask("talker", 60) == Asked([{"gpu": 0}], "did not end within 60 s", is_slow=True)


@pytest.mark.parametrize("flags", [[], ["--kernels"]])
def test_they_run_on_request_only(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination, "EVERYWHERE", ())
    monkeypatch.setattr(examination, "ON_WINDOWS", ())
    monkeypatch.setattr(facts, "ask_torch", lambda: TWO_GPUS)
    monkeypatch.setattr(facts, "check_kernels", lambda: KernelChecks((NORM, WRONG)))
    assert main(["doctor", "--json", *flags]) == len(flags)
    rows = json.loads(capsys.readouterr().out)["findings"]
    assert [row["verdict"] for row in rows] == (["ok", "problem"] if flags else [])

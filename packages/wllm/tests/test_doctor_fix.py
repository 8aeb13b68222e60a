"""`wllm doctor --fix`: which commands it offers, and that it runs those alone that a person said yes to."""

from __future__ import annotations

import builtins
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from wllm.cli import main
from wllm.doctor import examination
from wllm.doctor.checks import packages
from wllm.doctor.driver import Driver, GpuOfDriver
from wllm.doctor.facts import Facts, Torch
from wllm.doctor.finding import Check, Finding, Verdict
from wllm.doctor.mending import mend
from wllm.doctor.shell_command import ShellCommand, pip

FIRST, SECOND = ShellCommand(("first", "a b")), ShellCommand(("second",))
PROBLEM = Finding("torch", Verdict.PROBLEM, "wrong", "why", "fix", FIRST)
WARNING = Finding("wheels", Verdict.WARNING, "odd", "why", "fix", SECOND)

Answer = Callable[..., list[tuple[str, ...]]]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Says these words, one a question, then nothing more; gives the list of the commands that run."""

    def say(*words: str, code: int = 0) -> list[tuple[str, ...]]:
        left, ran = list(words), []

        def ask() -> str:
            if not left:
                raise EOFError
            return left.pop(0)

        def run(command: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
            ran.append(command)
            return subprocess.CompletedProcess(command, code)

        monkeypatch.setattr(builtins, "input", ask)
        monkeypatch.setattr(subprocess, "run", run)
        return ran

    return say


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("y", "n"), [FIRST.words]),
        (("", "Yes "), [SECOND.words]),
        (("y", "y"), [FIRST.words, SECOND.words]),
        (("no", "yet"), []),
        ((), []),
    ],
)
def test_only_what_was_agreed_to_runs(words: tuple[str, ...], expected: list[tuple[str, ...]], answer: Answer) -> None:
    ran = answer(*words)
    assert mend([PROBLEM, WARNING]) is bool(expected)
    assert ran == expected


def test_a_command_is_shown_and_offered_once(answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    ran = answer("y", "y", "y")
    mend([PROBLEM, Finding("again", Verdict.PROBLEM, "also wrong", command=FIRST)])
    assert ran == [FIRST.words]
    assert 'torch: wrong\n  first "a b"\nRun it? [y/N]' in capsys.readouterr().out


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.NOTE])
def test_what_is_well_enough_is_left_alone(
    verdict: Verdict, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = answer("y")
    assert not mend([Finding("disk", verdict, "seen", command=FIRST), Finding("port", Verdict.WARNING, "taken")])
    assert ran == [] and "nothing here that a command can mend" in capsys.readouterr().out


def test_a_command_that_fails_or_is_missing_is_told(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer("y", code=2)
    assert mend([PROBLEM]) and "ended with code 2" in capsys.readouterr().err
    answer("y")
    monkeypatch.undo()
    monkeypatch.setattr(builtins, "input", lambda: "y")
    missing = Finding("torch", Verdict.PROBLEM, "wrong", command=ShellCommand(("no-such-program-at-all",)))
    assert mend([missing]) and "no-such-program-at-all cannot be run" in capsys.readouterr().err


def test_it_looks_again_after_a_mend(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = answer("y")

    def look(_: Facts) -> Iterator[Finding]:
        yield Finding("torch", Verdict.OK, "mended") if ran else PROBLEM

    monkeypatch.setattr(examination, "EVERYWHERE", (Check("torch", look),))
    monkeypatch.setattr(examination, "ON_WINDOWS", ())
    assert main(["doctor", "--fix"]) == 0
    first, _, second = capsys.readouterr().out.partition("Run it?")
    assert "1 problem" in first and "mended" in second and "all is well" in second


def test_a_program_cannot_be_asked() -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--fix", "--json"])


@pytest.mark.parametrize(
    ("torch", "version", "build"),
    [
        (Torch("2.13.0+cpu"), 13000, "cu130"),
        (Torch(), 12080, "cu126"),
        (Torch("2.13.0+cu130", "13.0"), 12080, "cu126"),
        (Torch("2.13.0+cpu"), 11080, None),  # a new driver comes first
        (Torch(error="OSError: [WinError 126]"), 13000, None),  # the Visual C++ runtime comes first
    ],
)
def test_the_torch_that_is_offered(torch: Torch, version: int, build: str | None) -> None:
    driver = Driver(True, version, (GpuOfDriver("RTX 4070", (8, 9)),))
    (found,) = packages.torch(Facts(driver=lambda: driver, torch=lambda: torch))
    assert found.verdict is Verdict.PROBLEM
    assert (found.command is None) is (build is None)
    assert found.command is None or (found.command.words[-1].endswith(f"/{build}") and str(found.command) in found.fix)


def test_commands_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "C:\\Program Files\\Python\\python.exe")
    command = pip("install", "torch>=2.9,<2.16", "--index-url", "https://example.org/cu130")
    pasted = '"C:\\Program Files\\Python\\python.exe" -m pip install "torch>=2.9,<2.16" --index-url https://example.org/cu130'
    monkeypatch.setattr(sys, "platform", "linux")
    assert str(command) == pasted
    monkeypatch.setattr(sys, "platform", "win32")
    assert str(command) == f"& {pasted}"


def test_an_environment_without_pip_is_uvs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "C:\\env\\python.exe")
    assert str(pip("install", "numpy")) == "uv pip install --python C:\\env\\python.exe numpy"

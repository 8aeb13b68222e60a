"""`wllm doctor` as a whole: as a process on healthy and broken installations, its guard, its two reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wllm
from wllm.doctor.examination import EVERYWHERE, ON_WINDOWS, checks_here, examine
from wllm.doctor.facts import Facts, ask_torch
from wllm.doctor.finding import Check, Finding, Verdict
from wllm.doctor.report import json_report, text_report

NEVER_SEEN = ("Traceback", "Error in sys.excepthook", "Exception ignored")


def doctor(
    *arguments: str, python: tuple[str, ...] = (), cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *python, "-m", "wllm", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, cwd=cwd, env={**os.environ, **environment}, timeout=120)
    for words in NEVER_SEEN:
        assert words.encode() not in done.stdout + done.stderr, (done.stdout + done.stderr).decode(errors="replace")
    return done


def findings_of(done: subprocess.CompletedProcess[bytes]) -> dict[str, dict[str, str]]:
    document = json.loads(done.stdout)
    found = {row["check"]: row for row in document["findings"]}
    assert done.returncode == (document["verdict"] == "problem")
    return found


def test_one_json_document_with_every_check_even_where_warnings_are_errors(tmp_path: Path) -> None:
    done = doctor("--json", "--port", "0", python=("-W", "error"), PYTHONWARNINGS="error", HF_HOME=str(tmp_path))
    found = findings_of(done)
    assert done.stderr == b""
    assert {"operating system", "Python", "torch", "NVIDIA driver", "model cache", "temporary files"} <= set(found)
    assert not any("could not be checked" in row["seen"] for row in found.values())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('raise OSError("[WinError 126] Error loading \\"c10.dll\\" or one of its DLLs")', "WinError 126"),
        ("import os; os._exit(77)", "code 77"),
        ("", "no attribute '__version__'"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_told(source: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(source, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    found = findings_of(doctor("--json", PYTHONPATH=path))["torch"]
    assert found["verdict"] == "problem" and words in found["seen"]
    assert "pip install --force-reinstall" in found["fix"]
    assert ("Visual C++" in found["fix"]) == ("WinError" in words)


def test_what_torch_prints_hides_nothing(tmp_path: Path) -> None:
    source = "import atexit; print('hello'); atexit.register(print, 'goodbye')\nclass version: cuda = None\n"
    (tmp_path / "torch.py").write_text(f"{source}__version__ = '2.13.0'", encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    assert findings_of(doctor("--json", PYTHONPATH=path))["torch"]["seen"] == "torch 2.13.0, a CPU build"


def test_a_folder_called_torch_where_it_runs_is_not_taken_for_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not this one')", encoding="utf-8")
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    assert "not this one" not in findings_of(doctor("--json", cwd=tmp_path, PYTHONPATH=path))["torch"]["seen"]


def test_it_works_where_nothing_but_its_own_wheel_is_left(tmp_path: Path) -> None:
    shutil.copytree(Path(wllm.__file__).parent, tmp_path / "wllm", ignore=shutil.ignore_patterns("__pycache__"))
    found = findings_of(doctor("--json", python=("-S",), PYTHONPATH=str(tmp_path)))
    assert found["torch"]["seen"] == "not installed" and "pip install" in found["torch"]["fix"]
    assert found["wheels"]["verdict"] == "problem" and "wllm-kernels" in found["wheels"]["seen"]
    assert found["port"]["verdict"] == "warning" and "No module named 'wllm_api'" in found["port"]["seen"]


# R44: a console or a pipe with a code page that lacks most characters.
@pytest.mark.parametrize(("encoding", "flags"), [("cp1252:strict", ()), ("ascii:strict", ("--json",))])
def test_any_console_shows_it(encoding: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "modèles 模型"
    folder.mkdir()
    shown = doctor("--port", "0", *flags, PYTHONIOENCODING=encoding, PYTHONUTF8="0", HF_HOME=str(folder)).stdout
    if flags:
        assert shown.isascii()
        assert any(folder.name in row["seen"] for row in json.loads(shown)["findings"])
    else:
        assert folder.name in shown.decode("utf-8")


def test_its_own_words_are_ascii() -> None:
    sources = sorted((Path(wllm.__file__).parent / "doctor").rglob("*.py"))
    assert len(sources) > 10
    assert [path.name for path in sources if not path.read_text(encoding="utf-8").isascii()] == []


def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "wllm", "doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


def test_a_check_that_fails_is_a_finding_and_the_others_go_on() -> None:
    def broken(_: Facts) -> Iterator[Finding]:
        yield Finding("half", Verdict.OK, "seen")
        raise ZeroDivisionError("by zero")

    def fine(_: Facts) -> Iterator[Finding]:
        yield Finding("fine", Verdict.OK, "seen")

    found = examine(Facts(), [Check("broken", broken), Check("fine", fine)])
    assert [finding.check for finding in found] == ["half", "broken", "fine"]
    assert found[1].verdict is Verdict.WARNING and "ZeroDivisionError: by zero" in found[1].seen


def test_the_reports_say_the_same() -> None:
    findings = [
        Finding("disk", Verdict.OK, "large"),
        Finding("torch", Verdict.PROBLEM, "none", "models need it", "install it"),
        Finding("port", Verdict.WARNING, "taken"),
        Finding("page", Verdict.NOTE, "1252"),
        Finding("screen", Verdict.NOTE, "small"),
    ]
    text = text_report(findings)
    assert "problem  torch   none" in text and "why: models need it" in text and "fix: install it" in text
    assert text.endswith("1 problem, 1 warning, 2 notes")
    document = json.loads(json_report(findings))
    assert document["verdict"] == "problem" and len(document["findings"]) == 5
    assert document["findings"][1] == {
        "check": "torch", "verdict": "problem", "seen": "none", "reason": "models need it", "fix": "install it",
    }  # fmt: skip
    assert text_report(findings[:1]).endswith("all is well")


def test_windows_has_more_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert checks_here() == EVERYWHERE
    monkeypatch.setattr(sys, "platform", "win32")
    assert checks_here() == (*EVERYWHERE, *ON_WINDOWS)


def test_the_help_tells_the_verdicts_and_the_exit_code() -> None:
    text = doctor("--help").stdout.decode()
    assert [word for word in ("--json", "--port", "warning", "problem", "exit code") if word not in text] == []


def test_a_torch_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", never)
    found = ask_torch()
    assert found.is_slow and "did not end within 120 s" in found.error

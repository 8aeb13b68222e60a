"""Ctrl+C ends a call between two steps, and the engine goes on; a download it ends at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wllm import LLM, SamplingParams
from wllm.interrupts import deferred_interrupts, ending_interrupts
from wllm_runtime.testing import save_tiny_llama


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest of the block")
    assert done and signal.getsignal(signal.SIGINT) is before


def test_a_second_one_does_not() -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("the rest of the block")
    assert not done and signal.getsignal(signal.SIGINT) is before


def test_an_error_of_the_block_comes_first() -> None:
    with pytest.raises(ArithmeticError), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ArithmeticError


def test_a_download_ends_at_once_whatever_its_threads_do() -> None:
    code = (
        "import signal, threading, time; from wllm.interrupts import ending_interrupts;"
        "threading.Thread(target=time.sleep, args=(100,)).start()\n"
        "with ending_interrupts('bye'): signal.raise_signal(signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=50)
    assert (done.returncode, done.stderr) == (130, "\nbye\n")


def test_ctrl_c_is_itself_again_after_a_download() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ending_interrupts("bye"):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_run_as_they_are() -> None:
    done = []

    def run() -> None:
        with deferred_interrupts():
            done.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done


def test_an_engine_that_was_interrupted_while_it_launched_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_llama(tmp_path)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(tmp_path), skip_tokenizer_init=True) as llm:
        (expected,) = llm.generate([[5, 6, 7]], greedy, use_tqdm=False)
        runner = llm._engine.runner
        launch, launches = runner.launch, []

        def interrupted(plan: object) -> object:
            launches.append(plan)
            if len(launches) == 4:
                signal.raise_signal(signal.SIGINT)
            return launch(plan)  # type: ignore[arg-type]

        monkeypatch.setattr(runner, "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5, 6, 7]], greedy, use_tqdm=False)
        (again,) = llm.generate([[5, 6, 7]], greedy, use_tqdm=False)
        assert again.outputs[0].token_ids == expected.outputs[0].token_ids
        assert llm.stats().num_running == 0

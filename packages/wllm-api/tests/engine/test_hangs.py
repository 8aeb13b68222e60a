"""R34: an engine that hangs is ended, and one that only takes its time is not."""

import asyncio
import os
import signal
import sys
import time

import pytest
from engine_runs import ENDLESS, Running, read, run

from wllm_sched.sampling import SamplingParams


def test_an_engine_that_hangs_is_ended_and_comes_back(running: Running) -> None:
    async def test() -> None:
        async with running({"step_s": 60.0}, step_timeout_s=0.5) as engine:
            events = await read(engine.submit([5], ENDLESS))
            assert (events[-1].finish_reason, events[-1].error_code) == ("error", "engine_died")
            assert "no step ended within 0.5 s" in (events[-1].error or "")
            assert engine.state == "restarting"
            await engine.wait_ready()
            assert engine.num_restarts == 1

    run(test())


def test_an_engine_that_keeps_the_lock_for_ever_is_ended_and_comes_back(running: Running) -> None:
    async def test() -> None:
        async with running(factory="stub_engines:frozen", silence_timeout_s=0.5) as engine:
            events = await read(engine.submit([5], ENDLESS))
            assert (events[-1].finish_reason, events[-1].error_code) == ("error", "engine_died")
            assert "no sign of life within 0.5 s" in (events[-1].error or "")
            await engine.wait_ready()
            assert engine.num_restarts == 1

    run(test())


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no SIGSTOP; the test above freezes a process there too"
)
def test_a_stopped_engine_is_ended_when_there_is_work_for_it(running: Running) -> None:
    async def test() -> None:
        async with running({"step_s": 0.01}, silence_timeout_s=0.5) as engine:
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGSTOP)
            await asyncio.sleep(1.5)  # nobody waits for it: a debugger may hold it as long as it likes
            os.kill(engine.pid, signal.SIGCONT)
            stream = engine.submit([5], ENDLESS)
            await anext(stream)
            os.kill(engine.pid, signal.SIGSTOP)
            assert "no sign of life" in ((await read(stream))[-1].error or "")
            await engine.wait_ready()
            assert (await read(engine.submit([5], SamplingParams(max_tokens=2))))[-1].finish_reason == "length"

    run(test())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGSTOP")
def test_a_sleep_of_both_processes_is_no_hang(running: Running) -> None:
    """As a laptop's: the server, too, looks at nothing meanwhile."""

    async def test() -> None:
        async with running({"step_s": 0.01}, silence_timeout_s=1.0) as engine:
            assert engine.pid is not None
            stream = engine.submit([5], SamplingParams(max_tokens=100, ignore_eos=True))
            await anext(stream)
            os.kill(engine.pid, signal.SIGSTOP)
            time.sleep(3.0)
            os.kill(engine.pid, signal.SIGCONT)
            assert (await read(stream))[-1].finish_reason == "length"
            assert engine.num_restarts == 0

    run(test())


def test_slow_steps_idle_times_and_slow_loading_are_no_hang(running: Running) -> None:
    async def test() -> None:
        options = {"step_s": 1.0, "load_s": 1.5}
        async with running(options, step_timeout_s=8.0, silence_timeout_s=0.5) as engine:
            events = await read(engine.submit([5], SamplingParams(max_tokens=3, ignore_eos=True)))
            assert events[-1].finish_reason == "length"
            await asyncio.sleep(1.5)
            assert (engine.state, engine.num_restarts) == ("ready", 0)

    run(test())

"""EngineProcess with real spawned children."""

import asyncio
import os
import signal
import time

import pytest
from engine_runs import ENDLESS, Running, read, run, until

from wllm_api.errors import EngineDied, EngineUnavailable
from wllm_sched.sampling import SamplingParams


def _kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGTERM)  # on Windows this is TerminateProcess


def test_a_request_is_served(running: Running) -> None:
    async def test() -> None:
        async with running({"reply": "abc"}) as engine:
            assert engine.info is not None
            assert engine.info.model == "scripted"
            events = await read(engine.submit([5, 6], SamplingParams(max_tokens=100)))
            assert [event.finish_reason for event in events][-1] == "stop"
            assert sum(len(event.token_ids) for event in events) == 4
            await until(lambda: engine.stats.generation_tokens_total == 4)
            assert engine.stats.num_running == 0

    run(test())


def test_requests_run_side_by_side(running: Running) -> None:
    async def test() -> None:
        async with running({"step_s": 0.002}) as engine:
            params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
            alone = [await read(engine.submit([n + 5], params)) for n in range(8)]
            steps = engine.stats.steps_total
            together = await asyncio.gather(*(read(engine.submit([n + 5], params)) for n in range(8)))
            await until(lambda: engine.stats.generation_tokens_total == 2 * 8 * 60)
            for one, other in zip(alone, together, strict=True):
                assert [t for event in one for t in event.token_ids] == [t for event in other for t in event.token_ids]
            assert engine.stats.steps_total - steps < 4 * 60

    run(test())


def test_before_it_is_ready_requests_are_refused(running: Running) -> None:
    async def test() -> None:
        async with running({"load_s": 0.5}, ready=False) as engine:
            states = [engine.state]
            with pytest.raises(EngineUnavailable, match="still loading") as caught:
                engine.submit([5], ENDLESS)
            assert caught.value.state == "loading"
            await engine.wait_ready()
            assert [*states, engine.state] == ["loading", "ready"]

    run(test())


def test_a_killed_engine_fails_its_streams_and_comes_back(running: Running) -> None:
    async def test() -> None:
        restarts: list[int] = []
        async with running({"step_s": 0.01}, on_restart=lambda: restarts.append(1)) as engine:
            streams = [engine.submit([5], ENDLESS) for _ in range(3)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            first_pid = engine.pid
            _kill(first_pid)
            for events in await asyncio.gather(*map(read, streams)):
                assert (events[-1].finish_reason, events[-1].error_code) == ("error", "engine_died")
                assert "engine process died" in (events[-1].error or "")
            assert engine.state == "restarting"
            assert engine.stats.num_running == 0
            with pytest.raises(EngineUnavailable, match="being restarted"):
                engine.submit([5], ENDLESS)
            await engine.wait_ready()
            assert (engine.num_restarts, restarts, engine.pid != first_pid) == (1, [1], True)
            assert (await read(engine.submit([5], SamplingParams(max_tokens=2))))[-1].finish_reason == "length"

    run(test())


def test_an_exception_in_a_step_is_told(running: Running) -> None:
    async def test() -> None:
        async with running({"crash_after": 2}) as engine:
            events = await read(engine.submit([5], ENDLESS))
            assert "scripted crash in step 2" in (events[-1].error or "")

    run(test())


def test_three_crashes_are_the_end(running: Running) -> None:
    async def test() -> None:
        failures: list[str] = []
        async with running({"crash_after": 1}, on_failed=failures.append) as engine:
            for _ in range(3):
                await engine.wait_ready()
                assert (await read(engine.submit([5], ENDLESS)))[-1].finish_reason == "error"
            assert engine.state == "failed"
            assert engine.num_restarts == 2
            assert len(failures) == 1
            assert "crash 3 within 300 s" in failures[0]
            with pytest.raises(EngineDied, match="scripted crash"):
                await engine.wait_ready()
            with pytest.raises(EngineUnavailable, match="given up"):
                engine.submit([5], ENDLESS)

    run(test())


def test_crashes_outside_the_window_are_forgotten(running: Running) -> None:
    async def test() -> None:
        async with running({"crash_after": 1}, max_crashes=2, window_s=0.0) as engine:
            for _ in range(3):
                await engine.wait_ready()
                await read(engine.submit([5], ENDLESS))
            assert engine.state == "restarting"

    run(test())


@pytest.mark.parametrize("factory", ["no_such_module:f", "wllm_api.engine.scripted:no_such_function"])
def test_a_factory_that_cannot_be_found_fails_at_once(running: Running, factory: str) -> None:
    async def test() -> None:
        async with running(factory=factory, ready=False) as engine:
            with pytest.raises(EngineDied, match="no_such"):
                await engine.wait_ready()

    run(test())


def test_a_model_that_cannot_be_loaded_fails_at_once(running: Running) -> None:
    # R40
    async def test() -> None:
        failures: list[str] = []
        options = {"load_error": "model-2.safetensors is missing"}
        async with running(options, ready=False, on_failed=failures.append) as engine:
            with pytest.raises(EngineDied, match=r"model-2\.safetensors is missing"):
                await engine.wait_ready()
            assert (engine.state, engine.num_restarts, len(failures)) == ("failed", 0, 1)

    run(test())


def test_an_engine_killed_while_it_loads_is_started_again(running: Running) -> None:
    async def test() -> None:
        async with running({"load_s": 1.0}, ready=False) as engine:
            _kill(engine.pid)
            await until(lambda: engine.state == "restarting")
            await engine.wait_ready()
            assert engine.num_restarts == 1

    run(test())


def test_stopping_ends_open_streams(running: Running) -> None:
    async def test() -> None:
        async with running({"step_s": 0.01}) as engine:
            stream = engine.submit([5], ENDLESS)
            await anext(stream)
            await engine.stop()
            assert engine.state == "stopped"
            assert engine.pid is None
            assert (await read(stream))[-1].error_code == "engine_stopped"
            with pytest.raises(EngineUnavailable):
                engine.submit([5], ENDLESS)
            with pytest.raises(EngineDied):
                await engine.wait_ready()
            await engine.start()
            await engine.wait_ready()
            assert engine.num_restarts == 0

    run(test())


@pytest.mark.parametrize("options", [{"step_s": 60.0}, {"load_s": 60.0}])
def test_a_busy_engine_is_ended_after_the_timeout(running: Running, options: dict[str, object]) -> None:
    async def test() -> None:
        async with running(options, ready=False) as engine:
            if "step_s" in options:
                await engine.wait_ready()
                engine.submit([5], ENDLESS)
                await asyncio.sleep(0.2)
            started = time.perf_counter()
            await engine.stop(timeout_s=0.5)
            assert time.perf_counter() - started < 10
            assert engine.state == "stopped"

    run(test())


def test_stopping_during_the_back_off_starts_nothing(running: Running) -> None:
    async def test() -> None:
        async with running() as engine:
            _kill(engine.pid)
            await until(lambda: engine.state == "restarting")
            await engine.stop()
            await asyncio.sleep(0.7)
            assert (engine.state, engine.pid) == ("stopped", None)

    run(test())


def test_a_refused_request_hurts_only_itself(running: Running) -> None:
    async def test() -> None:
        async with running({"max_model_len": 8}) as engine:
            fine = engine.submit([5], SamplingParams(max_tokens=3))
            events = await read(engine.submit([5] * 9, SamplingParams(max_tokens=1, n=2)))
            assert [event.index for event in events] == [0, 1]
            for event in events:
                assert (event.finish_reason, event.error_code) == ("error", "context_length_exceeded")
                assert event.error_parameter == "prompt"
                assert "8 tokens" in (event.error or "")
            assert (await read(fine))[-1].finish_reason == "length"

    run(test())


def test_an_unexpected_failure_of_submit_hurts_only_its_request(running: Running) -> None:
    async def test() -> None:
        async with running(factory="stub_engines:exploding") as engine:
            (event,) = await read(engine.submit([300], ENDLESS))
            assert (event.error, event.error_code) == ("ValueError: boom", "internal_error")
            assert (await read(engine.submit([5], SamplingParams(max_tokens=1))))[-1].finish_reason == "length"
            assert engine.num_restarts == 0

    run(test())


def test_a_broken_invariant_ends_the_engine(running: Running) -> None:
    async def test() -> None:
        async with running(factory="stub_engines:exploding") as engine:
            (event,) = await read(engine.submit([301], ENDLESS))
            assert "I99" in (event.error or "")
            assert engine.state == "restarting"

    run(test())


def test_two_hundred_aborts_leave_nothing_running(running: Running) -> None:
    async def test() -> None:
        async with running({"step_s": 0.001, "max_num_seqs": 64}) as engine:
            streams = [engine.submit([5, 6, 7], ENDLESS) for _ in range(200)]
            await asyncio.gather(*(anext(stream) for stream in streams[:20]))
            await until(lambda: engine.stats.num_waiting > 0)
            for stream in streams:
                stream.abort()
            for events in await asyncio.gather(*map(read, streams)):
                assert events[-1].finish_reason == "abort"
            await until(lambda: engine.stats.aborts_in_flight_total == 200)
            assert (engine.stats.num_running, engine.stats.num_waiting) == (0, 0)
            assert engine.stats.num_free_blocks == engine.stats.num_blocks

    run(test())


def test_one_sample_is_aborted_alone(running: Running) -> None:
    async def test() -> None:
        async with running({"step_s": 0.005}) as engine:
            stream = engine.submit([5], SamplingParams(n=3, max_tokens=50, ignore_eos=True))
            await anext(stream)
            stream.abort(1)
            reasons = {event.index: event.finish_reason async for event in stream if event.finish_reason}
            assert reasons == {0: "length", 1: "abort", 2: "length"}

    run(test())


def test_a_server_that_does_not_read_stops_no_engine(running: Running) -> None:
    # The pipe holds some 64 kB; this is a hundred times that.
    async def test() -> None:
        async with running({"max_model_len": 40_000}) as engine:
            params = SamplingParams(max_tokens=10_000, ignore_eos=True, logprobs=20)
            streams = [engine.submit([5], params) for _ in range(2)]
            time.sleep(1.0)
            for events in await asyncio.gather(*map(read, streams)):
                assert sum(len(event.token_ids) for event in events) == 10_000
                assert sum(len(event.logprobs or ()) for event in events) == 10_000

    run(test())


def test_an_engine_that_does_not_read_stops_no_server(running: Running) -> None:
    async def test() -> None:
        async with running(factory="stub_engines:deaf", options={"max_model_len": 2_000_000}) as engine:
            first = engine.submit([5], SamplingParams(max_tokens=1))
            await asyncio.sleep(0.3)  # the engine now holds its GIL, and its pipe fills
            started = time.perf_counter()
            big = engine.submit([5] * 1_000_000, SamplingParams(max_tokens=1))
            sending_s = time.perf_counter() - started
            assert not first.finished
            started = time.perf_counter()
            await read(first)
            assert sending_s < max(time.perf_counter() - started, 0.5)
            assert (await read(big))[-1].finish_reason == "length"

    run(test())


def test_garbage_does_not_wait_for_the_size_of_the_model(running: Running) -> None:
    async def test() -> None:
        async with running(factory="stub_engines:littering") as engine:
            (event,) = await read(engine.submit([5], SamplingParams()))
            assert event.error is not None and 20_000 <= int(event.error) < 190_000

    run(test())

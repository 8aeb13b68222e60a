"""An engine that has lost its device ends and comes back, however late the device does."""

import asyncio
import logging
from pathlib import Path

import pytest
from engine_runs import ENDLESS, Running, read, run, until

from wllm_api.engine import process, spawn
from wllm_api.errors import EngineDied
from wllm_sched.sampling import SamplingParams

ON_GPU = "stub_engines:on_gpu"


def options_of(folder: Path, away: int = 0) -> dict[str, object]:
    return {"folder": str(folder), "device": "auto", "away": away}


def loads(folder: Path) -> list[str]:
    return (folder / "loads").read_text("utf-8").split()


def test_clients_and_the_log_are_told(running: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running(options_of(tmp_path), factory=ON_GPU) as engine:
            stream = engine.submit([5], ENDLESS)
            await anext(stream)
            (tmp_path / "lost").touch()
            last = (await read(stream))[-1]
            assert last.error_code == "engine_died"
            assert "the GPU no longer works for this process" in (last.error or "") and "Send it again" in (
                last.error or ""
            )
            await engine.wait_ready()
            assert (await read(engine.submit([5], SamplingParams(max_tokens=1))))[-1].finish_reason == "length"

    run(test())
    assert any("GPU no longer works" in text and "Restart in 0.5 s" in text for text in caplog.messages)


def test_an_idle_engine_finds_out_when_it_is_asked(running: Running, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(options_of(tmp_path), factory=ON_GPU) as engine:
            engine.check_device()
            assert (await read(engine.submit([5], SamplingParams(max_tokens=1))))[-1].finish_reason == "length"
            assert engine.num_restarts == 0
            (tmp_path / "lost").touch()
            engine.check_device()
            await until(lambda: engine.state == "restarting")
            engine.check_device()  # while there is none: nothing to ask
            await engine.wait_ready()
            assert engine.num_restarts == 1

    run(test())


def test_no_number_of_sleeps_is_the_end(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_FIRST_BACKOFF_S", 0.01)

    async def test() -> None:
        async with running(options_of(tmp_path), factory=ON_GPU, max_crashes=2) as engine:
            for num_restarts in (1, 2, 3):
                (tmp_path / "lost").touch()
                engine.check_device()
                await until(lambda: engine.state == "restarting")
                await engine.wait_ready()
                assert engine.num_restarts == num_restarts

    run(test())


def test_a_device_that_comes_back_late_is_waited_for(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "_FIRST_BACKOFF_S", 0.01)
    caplog.set_level(logging.ERROR)

    async def test() -> None:
        async with running(options_of(tmp_path, away=4), factory=ON_GPU) as engine:
            (tmp_path / "lost").touch()
            engine.check_device()
            await until(lambda: engine.state == "restarting")
            await engine.wait_ready()
            # After the first load none chose its device by itself.
            assert loads(tmp_path) == ["auto", *["cuda"] * 5]

    run(test())
    delays = [float(text.rpartition(" in ")[2].removesuffix(" s")) for text in caplog.messages if "Restart in" in text]
    assert delays == [0.01, 0.02, 0.04, 0.08, 0.16]


def test_a_device_that_does_not_come_back_is_the_end(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(process, "_MAX_FAILED_RELOADS", 3)

    async def test() -> None:
        failures: list[str] = []
        async with running(options_of(tmp_path, away=99), factory=ON_GPU, on_failed=failures.append) as engine:
            (tmp_path / "lost").touch()
            engine.check_device()
            await until(lambda: engine.state == "restarting")
            with pytest.raises(EngineDied, match="there is no GPU here"):
                await engine.wait_ready()
            assert len(failures) == 1 and "could not be loaded again 3 times in a row" in failures[0]
            assert len(loads(tmp_path)) == 4

    run(test())


def test_an_engine_that_does_not_end_after_its_last_word_is_ended(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "_EXIT_GRACE_S", 0.3)

    async def test() -> None:
        async with running(factory="stub_engines:clinging") as engine:
            last = (await asyncio.wait_for(read(engine.submit([5], ENDLESS)), 30))[-1]
            assert "lets no process end" in (last.error or "")
            await engine.wait_ready()

    run(test())


def test_an_idle_engine_that_hangs_in_the_check_is_ended(running: Running) -> None:
    async def test() -> None:
        async with running(factory="stub_engines:stuck", step_timeout_s=0.5) as engine:
            engine.check_device()
            await until(lambda: engine.state == "restarting")
            assert "no step ended within 0.5 s" in (engine.error or "")
            await engine.wait_ready()
            await asyncio.sleep(1.0)  # one that is not asked is no hang
            assert (engine.state, engine.num_restarts) == ("ready", 1)

    run(test())


def test_a_check_that_ends_well_is_no_hang(running: Running) -> None:
    async def test() -> None:
        async with running({"reply": "abc"}, step_timeout_s=0.5) as engine:
            engine.check_device()
            await asyncio.sleep(1.0)
            assert (engine.state, engine.num_restarts) == ("ready", 0)

    run(test())

"""Requests for vectors through an `EngineProcess`, and what each kind of engine refuses."""

import struct

import pytest
from engine_runs import Running, read, run, until

from wllm_sched.pooling import PooledText
from wllm_sched.sampling import SamplingParams

SCRIPTED = "wllm_api.engine.scripted:create_scripted_engine"
POOLER = "wllm_api.engine.scripted_pooler:create_scripted_pooler"


def test_vectors_come_as_tokens_do(running: Running) -> None:
    async def test() -> None:
        async with running({"max_num_seqs": 2}, POOLER) as engine:
            assert engine.info is not None
            assert (engine.info.task, engine.info.vector_size) == ("embed", 10)
            texts = [PooledText([5] * length) for length in (1, 9, 4)]
            events = await read(engine.pool(texts, dimensions=None, normalize=False))
            assert {event.index: struct.unpack("<10f", event.vector or b"")[5] for event in events} == {
                0: 1,
                1: 9,
                2: 4,
            }
            assert await read(engine.pool([], dimensions=None, normalize=None)) == []
            assert not engine._streams, "what has ended is not waited for, else the engine would seem to hang"
            await until(lambda: engine.stats.prompt_tokens_total == 14 and engine.stats.num_waiting == 0)

    run(test())


def test_each_text_of_a_lost_request_is_told(running: Running) -> None:
    async def test() -> None:
        async with running({"max_num_seqs": 1, "crash_after": 2}, POOLER) as engine:
            events = await read(engine.pool([PooledText([5])] * 3, dimensions=None, normalize=None))
            assert [event.finish_reason for event in events] == ["stop", "error", "error"]
            assert {event.error_code for event in events[1:]} == {"engine_died"}

    run(test())


@pytest.mark.parametrize(("factory", "asks"), [(SCRIPTED, "vectors"), (POOLER, "text"), (POOLER, "too much")])
def test_what_an_engine_cannot_do_is_refused_by_it(running: Running, factory: str, asks: str) -> None:
    async def test() -> None:
        async with running({}, factory) as engine:
            if asks == "text":
                stream = engine.submit([5, 6], SamplingParams(n=2))
            else:
                stream = engine.pool([PooledText([5] * 5000)] * 2, dimensions=None, normalize=None)
            events = await read(stream)
            assert [(event.index, event.finish_reason) for event in events] == [(0, "error"), (1, "error")]
            assert engine.state == "ready" and engine.num_restarts == 0

    run(test())

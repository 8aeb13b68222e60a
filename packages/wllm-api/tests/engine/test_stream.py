"""RequestStream without a process."""

import asyncio

import pytest

from wllm_api.engine import RequestStream
from wllm_api.engine.stream import MAX_TOKENS_AT_ONCE
from wllm_sched.messages import Abort, StartTimes, TokenEvent
from wllm_sched.plan import TokenLogprobs


def _entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -1.0, 1, ())


def _all(stream: RequestStream) -> list[TokenEvent]:
    async def read() -> list[TokenEvent]:
        return [event async for event in stream]

    return asyncio.run(asyncio.wait_for(read(), 10))


def test_a_reader_that_keeps_up_gets_each_event() -> None:
    async def run() -> None:
        stream = RequestStream(1, 1, lambda abort: None)
        events = [TokenEvent(1, 0, (n,)) for n in range(5)] + [TokenEvent(1, 0, finish_reason="stop")]
        for event in events:
            stream.deliver(event)
            assert await anext(stream) is event
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(run())


def test_events_that_wait_are_merged_without_loss() -> None:
    # R35
    stream = RequestStream(1, 1, lambda abort: None)
    stream.deliver(TokenEvent(1, 0, (0,), (_entry(0),), num_cached_tokens=16, prompt_logprobs=(None, _entry(9))))
    for n in range(1, 5000):
        stream.deliver(TokenEvent(1, 0, (n,), (_entry(n),)))
    stream.deliver(TokenEvent(1, 0, (7,), (_entry(7),), finish_reason="stop", stop_token_id=7))
    events = _all(stream)
    assert [len(event.token_ids) for event in events] == [MAX_TOKENS_AT_ONCE] * (5001 // MAX_TOKENS_AT_ONCE) + [
        5001 % MAX_TOKENS_AT_ONCE
    ]
    token_ids = [token_id for event in events for token_id in event.token_ids]
    assert token_ids == [*range(5000), 7]
    assert [row for event in events for row in event.logprobs or ()] == list(map(_entry, token_ids))
    assert {event.num_cached_tokens for event in events} == {16}
    assert [event.prompt_logprobs for event in events] == [(None, _entry(9))] + [None] * (len(events) - 1)
    *before, last = [(event.finish_reason, event.stop_token_id) for event in events]
    assert (set(before), last) == ({(None, None)}, ("stop", 7))


@pytest.mark.parametrize("count", [1, 2, MAX_TOKENS_AT_ONCE, MAX_TOKENS_AT_ONCE + 1, 2 * MAX_TOKENS_AT_ONCE])
def test_what_comes_between_pieces_is_merged_too(count: int) -> None:
    async def run() -> None:
        stream = RequestStream(1, 2, lambda abort: None)
        for n in range(count):
            stream.deliver(TokenEvent(1, 0, (n,), start_times=StartTimes(1.0, 2.0) if n == 0 else None))
        stream.deliver(TokenEvent(1, 1, finish_reason="stop"))
        first = await anext(stream)
        stream.deliver(TokenEvent(1, 0, (count,)))
        stream.deliver(TokenEvent(1, 0, error="died", finish_reason="error"))
        events = [first] + [event async for event in stream]
        assert [token_id for event in events for token_id in event.token_ids] == list(range(count + 1))
        assert [event.start_times for event in events if event.start_times] == [StartTimes(1.0, 2.0)]
        # The other sample does not wait until all of this one has been read.
        assert [event.index for event in events[:2]] == [0, 1]
        assert [(event.index, event.error) for event in events if event.finish_reason] == [(1, None), (0, "died")]

    asyncio.run(run())


def test_others_are_served_between_the_pieces_of_a_long_backlog() -> None:
    async def run() -> None:
        stream = RequestStream(1, 1, lambda abort: None)
        for n in range(10 * MAX_TOKENS_AT_ONCE):
            stream.deliver(TokenEvent(1, 0, (n,)))
        stream.deliver(TokenEvent(1, 0, finish_reason="stop"))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(other())
        assert len([event async for event in stream]) == 10
        task.cancel()
        assert turns >= 8

    asyncio.run(run())


def test_logprobs_stay_absent_when_nobody_asked() -> None:
    stream = RequestStream(1, 1, lambda abort: None)
    stream.deliver(TokenEvent(1, 0, (1,)))
    stream.deliver(TokenEvent(1, 0, (2,), finish_reason="length"))
    assert _all(stream) == [TokenEvent(1, 0, (1, 2), finish_reason="length")]


def test_samples_are_not_mixed() -> None:
    stream = RequestStream(1, 3, lambda abort: None)
    for n in range(9):
        stream.deliver(TokenEvent(1, n % 3, (n,), finish_reason="stop" if n >= 6 else None))
    assert [(event.index, event.token_ids) for event in _all(stream)] == [
        (0, (0, 3, 6)),
        (1, (1, 4, 7)),
        (2, (2, 5, 8)),
    ]


def test_the_stream_ends_after_the_last_final_event() -> None:
    stream = RequestStream(1, 2, lambda abort: None)
    stream.deliver(TokenEvent(1, 1, finish_reason="stop"))
    assert not stream.finished
    stream.deliver(TokenEvent(1, 0, finish_reason="length"))
    assert stream.finished
    assert len(_all(stream)) == 2
    assert _all(stream) == []


def test_failing_ends_only_what_is_open() -> None:
    stream = RequestStream(1, 2, lambda abort: None)
    stream.deliver(TokenEvent(1, 0, (5,), finish_reason="stop"))
    stream.fail("died", "engine_died")
    first, second = _all(stream)
    assert (first.finish_reason, first.error) == ("stop", None)
    assert (second.index, second.finish_reason, second.error, second.error_code) == (1, "error", "died", "engine_died")


def test_a_waiting_reader_is_woken() -> None:
    async def run() -> TokenEvent:
        stream = RequestStream(1, 1, lambda abort: None)
        reader = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        stream.deliver(TokenEvent(1, 0, (1,)))
        return await asyncio.wait_for(reader, 10)

    assert asyncio.run(run()).token_ids == (1,)


def test_aborts_are_sent_until_the_end() -> None:
    sent: list[Abort] = []
    stream = RequestStream(1, 2, sent.append)
    stream.abort(1)
    stream.deliver(TokenEvent(1, 1, finish_reason="abort"))
    stream.abort(1)
    stream.abort()
    stream.deliver(TokenEvent(1, 0, finish_reason="abort"))
    stream.abort()
    assert sent == [Abort(1, 1), Abort(1, None)]


def test_an_event_after_the_last_is_a_broken_invariant() -> None:
    stream = RequestStream(1, 1, lambda abort: None)
    stream.deliver(TokenEvent(1, 0, finish_reason="stop"))
    with pytest.raises(AssertionError, match="I13"):
        stream.deliver(TokenEvent(1, 0, (1,)))

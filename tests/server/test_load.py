"""Many clients at a time: the same texts as one after another, real batching, and nothing left behind."""

from __future__ import annotations

import asyncio

import openai
import pytest
from server.running_server import RunningServer, wait_until

STREAMS = 32
TOKENS = 24
TOPICS = ("rivers", "bread", "the moon", "cats", "trains", "gardens", "winter", "maps")


def prompt(index: int) -> str:
    return f"Story {index} about {TOPICS[index % len(TOPICS)]}: once upon a time" + " there was a house" * (index % 5)


async def stream(client: openai.AsyncOpenAI, model: str, index: int) -> str:
    pieces = await client.completions.create(
        model=model,
        prompt=prompt(index),
        temperature=0,
        max_tokens=TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    return "".join([piece.choices[0].text async for piece in pieces if piece.choices])


def test_concurrent_streams_give_the_texts_of_serial_ones(server: RunningServer) -> None:
    model = server.model()

    async def serial() -> list[str]:
        async with server.async_client() as client:
            return [await stream(client, model, index) for index in range(STREAMS)]

    async def together() -> tuple[list[str], float]:
        async with server.async_client() as client:
            streams = asyncio.gather(*(stream(client, model, index) for index in range(STREAMS)))
            most_running = 0.0
            while not streams.done():
                most_running = max(most_running, await asyncio.to_thread(server.metric, "num_requests_running"))
                await asyncio.sleep(0.02)
            return await streams, most_running

    alone = asyncio.run(serial())
    steps, tokens = server.metric("engine_steps_total"), server.metric("generation_tokens_total")
    texts, most_running = asyncio.run(together())
    steps = server.metric("engine_steps_total") - steps
    tokens = server.metric("generation_tokens_total") - tokens
    print(f"most running {most_running:.0f}, {steps:.0f} steps for {tokens:.0f} tokens")
    assert texts == alone
    assert tokens == STREAMS * TOKENS
    assert most_running >= 16
    assert steps <= tokens / 4


def test_clients_that_disconnect_leave_nothing_behind(server: RunningServer) -> None:
    """R33."""
    clients, at_a_time = 200, 50
    model = server.model()

    async def leave(client: openai.AsyncOpenAI, index: int) -> None:
        pieces = await client.completions.create(
            model=model, prompt=prompt(index), max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        async for piece in pieces:
            if piece.choices and piece.choices[0].text:
                break
        await pieces.close()

    async def everyone() -> None:
        async with server.async_client() as client:
            for first in range(0, clients, at_a_time):
                await asyncio.gather(*(leave(client, index) for index in range(first, first + at_a_time)))

    asyncio.run(everyone())
    wait_until(lambda: server.metric("num_requests_running") == 0, 10, "no request runs")
    wait_until(lambda: server.metric("num_requests_waiting") == 0, 10, "no request waits")
    wait_until(lambda: server.metric("kv_blocks_free") == server.metric("kv_blocks"), 10, "all blocks are free")


def test_a_prompt_that_is_too_long_hurts_only_itself(server: RunningServer) -> None:
    """R12."""
    client, model = server.client(), server.model()
    running = client.completions.create(
        model=model, prompt="Once", temperature=0, max_tokens=40, stream=True, extra_body={"ignore_eos": True}
    )
    pieces = iter(running)
    first = next(pieces)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=model, prompt="word " * 20_000, max_tokens=16)
    rest = [piece for piece in pieces if piece.choices]
    assert refused.value.code == "context_length_exceeded"
    assert "8192" in refused.value.message and "20001" in refused.value.message
    assert first.choices and rest[-1].choices[0].finish_reason == "length"
    assert client.completions.create(model=model, prompt="Hi", max_tokens=1).choices[0].finish_reason == "length"

"""Many requests at a time, and clients that leave: nobody gets another one's text, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from contract.conftest import Ask
from contract.requests import CITY, joined, schema_form, text_of, user
from server.running_server import RunningServer, wait_until


@pytest.fixture(autouse=True)
def nothing_is_left(server: RunningServer) -> Iterator[None]:
    yield
    wait_until(lambda: server.metric("num_requests_running") == 0, 10, "no request runs")
    wait_until(lambda: server.metric("num_requests_waiting") == 0, 10, "no request waits")
    wait_until(lambda: server.metric("kv_blocks_free") == server.metric("kv_blocks"), 10, "all blocks are free")


def test_all_apis_at_a_time(
    chat: Ask, complete: Ask, respond: Ask, message: Ask, llama: ollama.Client, model: str
) -> None:
    """Each gets what it gets alone."""
    greedy: Any = {"num_predict": 4, "temperature": 0}
    calls: list[Callable[[], str]] = [
        lambda: text_of(chat()),
        lambda: joined(chat(stream=True, max_tokens=8)),
        lambda: str(complete().choices[0].text),
        lambda: str(respond().output_text),
        lambda: str(message().content[0].text),
        lambda: str(llama.chat(model, messages=[user("Say hello.")], options=greedy).message.content),
        lambda: text_of(chat(temperature=1.5, seed=3)),
        lambda: text_of(chat(response_format=schema_form(CITY), max_tokens=20)),
    ]
    alone = [call() for call in calls]
    with ThreadPoolExecutor(len(calls)) as pool:
        together = list(pool.map(lambda call: call(), calls))
    assert together == alone


def test_seeds_hold_in_company(chat: Ask) -> None:
    def text(seed: int) -> str:
        return text_of(chat(temperature=1.5, seed=seed, max_tokens=8))

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(text, [1, 2, 3, 1, 2, 3, 1, 2]))
    assert together[:3] == together[3:6] and together[:2] == together[6:] and len(set(together)) == 3


def test_bad_requests_among_good_ones(chat: Ask) -> None:
    def text(number: int) -> str:
        try:
            return text_of(chat(temperature=9 if number % 2 else 0))
        except openai.BadRequestError:
            return "refused"

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(text, range(8)))
    assert texts == [texts[0], "refused"] * 4 and texts[0] != "refused"


@pytest.mark.parametrize("leave", ["chat", "completions", "responses", "messages", "ollama"])
def test_stream_that_is_closed(
    server: RunningServer, client: openai.OpenAI, claude: anthropic.Anthropic, llama: ollama.Client, model: str,
    leave: str,
) -> None:  # fmt: skip
    endless: Any = {"ignore_eos": True}
    messages: Any = [user("Tell me a very long story.")]
    text = "Tell me a very long story."
    opened: dict[str, Callable[[], Any]] = {
        "chat": lambda: client.chat.completions.create(model=model, messages=messages, stream=True, extra_body=endless),
        "completions": lambda: client.completions.create(
            model=model, prompt=text, max_tokens=4000, stream=True, extra_body=endless
        ),
        "responses": lambda: client.responses.create(model=model, input=text, max_output_tokens=4000, stream=True),
        "messages": lambda: claude.messages.create(model=model, messages=messages, max_tokens=4000, stream=True),
        "ollama": lambda: llama.chat(model, messages=messages, stream=True),
    }
    stream = opened[leave]()
    next(iter(stream))
    wait_until(lambda: server.metric("num_requests_running") == 1, 10, "the request runs")
    stream.close()


def test_whole_answer_whose_client_gives_up(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).completions.create(
            model=model, prompt="Once", max_tokens=4000, extra_body={"ignore_eos": True}
        )


def test_cancelled_task(server: RunningServer, model: str) -> None:
    async def leave() -> None:
        async with server.async_client() as client:
            task = asyncio.create_task(
                client.completions.create(model=model, prompt="Once", max_tokens=4000, extra_body={"ignore_eos": True})
            )
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(leave())


def test_choices_whose_client_leaves(client: openai.OpenAI, model: str) -> None:
    messages: Any = [user("Tell me a very long story.")]
    with client.chat.completions.create(model=model, messages=messages, n=8, stream=True) as stream:
        next(iter(stream))


def test_connection_is_used_again(http: httpx.Client) -> None:
    for status in (400, 200, 404, 200):
        path = {400: "/v1/chat/completions", 404: "/v1/absent", 200: "/v1/models"}[status]
        answer = http.post(path, content=b"{") if status == 400 else http.get(path)
        assert answer.status_code == status and answer.headers.get("connection") != "close"

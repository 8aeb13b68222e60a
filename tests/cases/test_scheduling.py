"""Caching, chunks and preemption never change what a request gets; each end token of a model ends its answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cases.odd_model import CONSOLE, END, END_WORD, SMALL
from cases.requests import CHAT, COMPLETIONS, HI, ask, reasons, stream, streamed_text, text_of
from server.running_server import RunningServer, wait_until

BLOCK = 16


@pytest.fixture(scope="module")
def uncached_server(odd_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = (*SMALL, "--no-enable-prefix-caching")
    with RunningServer(tmp_path_factory.mktemp("uncached"), str(odd_folder), *flags, environment=CONSOLE) as running:
        yield running.wait_ready()


def test_r36_prompt_logprobs_do_not_depend_on_the_cache(odd: httpx.Client) -> None:
    """vllm-project/vllm#8268"""
    for length in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 40):
        body = {"prompt": [*range(5, 5 + length)], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        first, second = (ask(odd, COMPLETIONS, **body)["choices"][0]["logprobs"] for _ in range(2))
        assert first["tokens"] == second["tokens"] and len(first["tokens"]) == length + 1
        assert first["token_logprobs"][0] is second["token_logprobs"][0] is None
        assert first["token_logprobs"][1:] == pytest.approx(second["token_logprobs"][1:], abs=1e-3)
    plain = {"prompt": [*range(5, 45)], "max_tokens": 1}
    assert ask(odd, COMPLETIONS, **plain)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 2 * BLOCK


@pytest.mark.parametrize("server_name", ["odd_server", "uncached_server"])
def test_r37_preempted_answers_are_whole(server_name: str, request: pytest.FixtureRequest) -> None:
    """vllm-project/vllm-gaudi#524: 8 requests of 100 tokens in 304 slots, prompts in chunks of 16 tokens."""
    running: RunningServer = request.getfixturevalue(server_name)
    bodies = [
        {"prompt": f"Story number {k}: once there was a small cat", "temperature": 0, "max_tokens": 60,
         "ignore_eos": True, "logprobs": 1, "stream_options": {"include_usage": True}}
        for k in range(8)
    ]  # fmt: skip
    with httpx.Client(base_url=running.url, timeout=120) as client:
        alone = [stream(client, COMPLETIONS, **body) for body in bodies]
        before = running.metric("num_preemptions_total")
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda body: stream(client, COMPLETIONS, **body), bodies))
    assert {chunks[-1]["usage"]["prompt_tokens"] for chunks in alone} == {40}
    for one, other in zip(alone, together, strict=True):
        assert streamed_text(one) == streamed_text(other)
        assert other[-1]["usage"]["completion_tokens"] == 60 and reasons(other) == {0: "length"}
        values = [_values(chunks) for chunks in (one, other)]
        assert len(values[1]) == 60 and values[0] == pytest.approx(values[1], abs=1e-3)
    assert running.metric("num_preemptions_total") > before
    wait_until(lambda: running.metric("kv_blocks_free") == running.metric("kv_blocks"), 5, "no block is in use")
    assert running.metric("kv_cache_usage_perc") == 0


def _values(chunks: list[Any]) -> list[float]:
    rows = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    return [value for row in rows for value in row["token_logprobs"]]


@pytest.mark.parametrize("end", [END, END_WORD])
def test_r38_each_end_token_of_the_model_ends_an_answer(odd: httpx.Client, end: int) -> None:
    """oobabooga/textgen#5885, vllm-project/vllm#5849; END_WORD is an ordinary word, which would be printed."""
    body = {"messages": HI, "max_tokens": 50, "temperature": 0, "logit_bias": {str(end): 100}}
    ended = ask(odd, CHAT, **body)
    assert (text_of(ended), ended["choices"][0]["finish_reason"]) == ("", "stop")
    assert reasons(stream(odd, CHAT, **body)) == {0: "stop"} and streamed_text(stream(odd, CHAT, **body)) == ""
    later = ask(odd, CHAT, **body, min_tokens=7, return_token_ids=True)["choices"][0]
    assert later["finish_reason"] == "stop" and not {END, END_WORD} & set(later["token_ids"][:7])
    assert later["token_ids"][7:] == [end] and "hello" not in later["message"]["content"]

"""The shape of answers: several at a time, usage, null fields, log-probabilities, sampling at its edges, seeds."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from cases.odd_model import PADDED, VOCAB_SIZE
from cases.requests import (
    CHAT,
    COMPLETIONS,
    HI,
    ask,
    reasons,
    refusal,
    stream,
    streamed_text,
    text_of,
    without_cache,
)


def test_r05_streamed_answers_keep_their_index(http: httpx.Client) -> None:
    """sgl-project/sglang#2912"""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Pick a word."}], "n": 3, "seed": 7, "temperature": 1.0,
        "max_tokens": 12,
    }  # fmt: skip
    whole = ask(http, CHAT, **body)
    *chunks, last = stream(http, CHAT, **body, stream_options={"include_usage": True})
    assert last["choices"] == [] and without_cache(last["usage"]) == without_cache(whole["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)
    deltas = [(choice["index"], choice["delta"]) for chunk in chunks for choice in chunk["choices"]]
    assert sorted((index, delta["role"]) for index, delta in deltas if "role" in delta) == [
        (index, "assistant") for index in range(3)
    ]
    assert reasons(chunks) == {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}
    texts = [text_of(whole, index) for index in range(3)]
    assert [streamed_text(chunks, index) for index in range(3)] == texts and len(set(texts)) > 1


@pytest.mark.parametrize(("prompt", "n"), [("Hello", 2), (["Hello", "Hello there"], 1)])
def test_r06_usage_counts_every_answer_and_each_prompt_once(odd: httpx.Client, prompt: Any, n: int) -> None:
    """ggml-org/llama.cpp#27318, inclusionAI/AReno#460"""
    usage = ask(odd, COMPLETIONS, prompt=prompt, n=n, max_tokens=8, ignore_eos=True, temperature=1)["usage"]
    texts = [prompt] if isinstance(prompt, str) else prompt
    assert usage["completion_tokens"] == 16
    assert usage["prompt_tokens"] == sum(ask(odd, "/tokenize", prompt=text)["count"] for text in texts)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 16


NULLS = (
    "stream_options function_call functions tools stop seed n logprobs top_logprobs logit_bias response_format "
    "temperature top_p presence_penalty frequency_penalty user metadata service_tier reasoning_effort modalities"
).split()


def test_r08_optional_fields_may_be_null(odd: httpx.Client) -> None:
    """huggingface/text-generation-inference#3155"""
    messages = [{"role": "user", "content": "Hi", "name": None}]
    null = ask(odd, CHAT, messages=messages, max_tokens=4, stream=False, seed=3, **dict.fromkeys({*NULLS} - {"seed"}))
    assert text_of(null) == text_of(ask(odd, CHAT, messages=HI, max_tokens=4, seed=3))
    ask(odd, CHAT, messages=messages, max_tokens=4, stream=False, **dict.fromkeys(NULLS))


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_r09_a_prompt_is_scored_without_an_answer(http: httpx.Client, max_tokens: int) -> None:
    """vllm-project/vllm#6521"""
    text = "Your answer: Yes"
    answer = ask(http, COMPLETIONS, prompt=text, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0)
    (choice,) = answer["choices"]
    values = choice["logprobs"]["token_logprobs"]
    assert choice["text"].startswith(text) and choice["finish_reason"] == "length"
    assert len(values) == len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"] + max_tokens
    assert values[0] is None and all(value <= 0 for value in values[1:])
    assert answer["usage"]["completion_tokens"] == max_tokens
    ask(http, COMPLETIONS, prompt="Hi", max_tokens=1)


YES_OR_NO = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}


@pytest.mark.parametrize(("path", "body"), [
    (COMPLETIONS, {"prompt": "Answer:", "max_tokens": 6, "temperature": 0.01, "top_p": 0.3, "top_k": 1, "logprobs": 5}),
    (CHAT, {"messages": [{"role": "user", "content": "Yes or no?"}], "logprobs": True, "top_logprobs": 5,
            "max_tokens": 20, "response_format": YES_OR_NO}),
])  # fmt: skip
def test_r10_excluded_tokens_have_finite_logprobs(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """sgl-project/sglang#5984; `strict` refuses NaN and Infinity."""
    whole, chunks = ask(http, path, **body), stream(http, path, **body)
    # A prompt from the cache is computed in other pieces than a new one: the last digits may differ.
    shown, streamed = (_logprobs(choices) for choices in (whole["choices"], [c for k in chunks for c in k["choices"]]))
    assert [token for token, _ in shown] == [token for token, _ in streamed] != []
    assert [value for _, value in shown] == pytest.approx([value for _, value in streamed], abs=1e-3)
    if path == CHAT:
        assert text_of(whole) in ('"yes"', '"no"')


def _logprobs(choices: list[Any]) -> list[tuple[str, float]]:
    """Every entry of both shapes: a token, then its alternatives."""
    found: list[tuple[str, float]] = []
    for logprobs in filter(None, (choice["logprobs"] for choice in choices)):
        for row in logprobs.get("content") or []:
            assert len(row["top_logprobs"]) == 5
            found += [(entry["token"], entry["logprob"]) for entry in (row, *row["top_logprobs"])]
        for token, value, top in zip(
            *(logprobs.get(name, []) for name in ("tokens", "token_logprobs", "top_logprobs"))
        ):
            assert len(top) == 5
            found += [(token, value), *top.items()]
    return found


NEARLY_GREEDY: list[dict[str, Any]] = [
    {"temperature": 0.0001},
    {"temperature": 1e-30},
    {"temperature": 1, "top_p": 0.0001},
    {"temperature": 1, "top_p": 0},
    {"temperature": 1, "top_k": 1},
    {"temperature": 1, "min_p": 1.0},
    {"temperature": 1e-30, "top_p": 0.0001, "top_k": 1, "min_p": 1.0},
]


@pytest.mark.parametrize(("model", "every"), [("http", NEARLY_GREEDY[::6]), ("odd", NEARLY_GREEDY)])
def test_r15_tiny_values_are_greedy(model: str, every: list[dict[str, Any]], request: pytest.FixtureRequest) -> None:
    """vllm-project/vllm#1623"""
    client: httpx.Client = request.getfixturevalue(model)
    body = {"prompt": "Hello", "max_tokens": 8}
    greedy = text_of(ask(client, COMPLETIONS, **body, temperature=0))
    for fields in every:
        assert text_of(ask(client, COMPLETIONS, **body, **fields)) == greedy, fields


@pytest.mark.parametrize("top_k", [10**9, -1, 0])
def test_r15_top_k_that_takes_everything_is_off(odd: httpx.Client, top_k: int) -> None:
    """vllm-project/vllm#1623"""
    body = {"prompt": "Hello", "max_tokens": 8, "temperature": 1.2, "seed": 5}
    assert text_of(ask(odd, COMPLETIONS, **body, top_k=top_k)) == text_of(ask(odd, COMPLETIONS, **body))


def test_r16_seeds_repeat_an_answer(odd: httpx.Client) -> None:
    """vllm-project/vllm#21310"""
    body = {"messages": [{"role": "user", "content": "Tell a joke."}], "temperature": 0.9, "max_tokens": 40}
    first = text_of(ask(odd, CHAT, **body, seed=123))
    ask(odd, CHAT, messages=HI, max_tokens=2)
    assert text_of(ask(odd, CHAT, **body, seed=123)) == first == streamed_text(stream(odd, CHAT, **body, seed=123))
    others = [text_of(ask(odd, CHAT, **body, seed=seed)) for seed in (124, 0, 0, -1)]
    assert first not in others[:2] and others[1] == others[2]
    assert refusal(odd, CHAT, **body, seed=18446744073709551616)["param"] == "seed"


@pytest.mark.parametrize("token_id", [PADDED, VOCAB_SIZE - 1])
def test_r41_ids_beyond_the_tokenizer_show_nothing(odd: httpx.Client, token_id: int) -> None:
    """pegainfer-project/pegainfer#673: they are taken, have no text, and hurt nobody."""
    body = {"prompt": "Hi", "max_tokens": 4, "temperature": 0, "logit_bias": {str(token_id): 100}, "logprobs": 1}
    whole, chunks = ask(odd, COMPLETIONS, **body), stream(odd, COMPLETIONS, **body)
    assert text_of(whole) == streamed_text(chunks) == "" and reasons(chunks) == {0: "length"}
    assert whole["choices"][0]["logprobs"]["tokens"] == [""] * 4
    chat = ask(odd, CHAT, messages=HI, max_tokens=2, logit_bias={str(token_id): 100}, logprobs=True, top_logprobs=2)
    assert [row["token"] for row in chat["choices"][0]["logprobs"]["content"]] == ["", ""]
    echoed = ask(odd, COMPLETIONS, prompt=[token_id, 5], max_tokens=4, echo=True, logprobs=1, temperature=0)
    assert echoed["usage"]["prompt_tokens"] == 2 and len(echoed["choices"][0]["logprobs"]["tokens"]) == 6
    assert without_cache(echoed["usage"])["completion_tokens"] == 4
    for field in ({"prompt": [VOCAB_SIZE]}, {"prompt": "Hi", "logit_bias": {str(VOCAB_SIZE): 1}}):
        assert str(VOCAB_SIZE) in refusal(odd, COMPLETIONS, **field)["message"]

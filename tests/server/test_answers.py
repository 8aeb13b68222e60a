"""The main job: the `openai` SDK and plain HTTP get sensible, ended answers from the real small model."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import openai
import pytest
from server.running_server import RunningServer

from wllm_runtime.testing import save_tiny_llama

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


def test_whole_answer_is_sensible_and_ended(server: RunningServer) -> None:
    answer = server.client().chat.completions.create(model=server.model(), messages=CAPITAL, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.total_tokens > answer.usage.prompt_tokens > 0


def test_answer_without_a_temperature_is_sensible_and_ended(server: RunningServer) -> None:
    answer = server.client().chat.completions.create(model=server.model(), messages=CAPITAL)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_streamed_answer_is_the_whole_answer(server: RunningServer) -> None:
    client, model = server.client(), server.model()
    whole = client.chat.completions.create(model=model, messages=CAPITAL, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=model, messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert text == whole.choices[0].message.content
    assert reasons == ["stop"]
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_plain_http_without_a_library(server: RunningServer) -> None:
    body = json.dumps({"messages": CAPITAL, "temperature": 0}).encode()
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        choice = json.load(answer)["choices"][0]
    assert "Paris" in choice["message"]["content"] and choice["finish_reason"] == "stop"


def test_the_next_turn_hits_the_prefix_cache(server: RunningServer) -> None:
    client, model = server.client(), server.model()
    first = client.chat.completions.create(model=model, messages=CAPITAL, temperature=0)
    turn = [*CAPITAL, {"role": "assistant", "content": first.choices[0].message.content}]
    turn.append({"role": "user", "content": "And of Italy?"})
    second = client.chat.completions.create(model=model, messages=turn, temperature=0, max_tokens=20)
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_completion_with_prompt_logprobs_scores_the_prompt(server: RunningServer) -> None:
    answer = server.client().completions.create(
        model=server.model(), prompt="The capital of France is Paris", echo=True, logprobs=1, max_tokens=0
    )
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "The capital of France is Paris"
    assert logprobs is not None and logprobs.token_logprobs is not None
    # SmolLM2 adds no begin token, so the first prompt token has nothing before it.
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])


def test_best_of_gives_the_likeliest_answers(server: RunningServer) -> None:
    client, model = server.client(), server.model()
    fields = {"prompt": "My favourite animal is", "temperature": 1.0, "seed": 11, "max_tokens": 6}
    every = client.completions.create(model=model, n=4, logprobs=0, **fields)

    def mean(number: int) -> float:
        logprobs = every.choices[number].logprobs
        assert logprobs is not None and logprobs.token_logprobs
        return sum(logprobs.token_logprobs) / len(logprobs.token_logprobs)

    ranked = [every.choices[number].text for number in sorted(range(4), key=mean, reverse=True)]
    assert len(set(ranked)) == 4
    best = client.completions.create(model=model, n=2, best_of=4, **fields)
    assert [choice.text for choice in best.choices] == ranked[:2]
    assert best.usage is not None and every.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens


def test_without_a_tokenizer_ids_come_in_and_go_out(tmp_path: Path) -> None:
    folder = tmp_path / "tiny モデル"
    save_tiny_llama(folder)
    with RunningServer(tmp_path, str(folder), "--skip-tokenizer-init") as running:
        running.wait_ready()
        client, model = running.client(), running.model()
        answer = client.completions.create(
            model=model,
            prompt=[5, 6, 7],
            max_tokens=4,
            logprobs=2,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        choice = answer.choices[0]
        assert choice.text == "" and len(choice.model_extra["token_ids"]) == 4  # type: ignore[index]
        assert choice.logprobs is not None and choice.logprobs.tokens[0].startswith("token_id:")  # type: ignore[index]
        with pytest.raises(openai.BadRequestError, match="without a tokenizer"):
            client.completions.create(model=model, prompt="text", max_tokens=4)

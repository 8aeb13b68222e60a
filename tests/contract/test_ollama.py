"""Ollama's API through Ollama's package: lines, options, lists of models, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import ollama
import pytest
from contract.requests import later, user
from server.running_server import RunningServer

FRANCE = "What is the capital of France?"
Talk = Callable[..., Any]


@pytest.fixture(scope="module")
def talk(llama: ollama.Client, model: str) -> Talk:
    """`chat` with four tokens of answer, greedy, unless the options say otherwise."""

    def ask(content: str = "Say hello.", options: Any = None, **fields: Any) -> Any:
        options = {"num_predict": 4, "temperature": 0, **(options or {})}
        return llama.chat(**{"model": model, "messages": [user(content)], "options": options, **fields})

    return ask


@pytest.fixture(scope="module")
def answer(talk: Talk) -> Any:
    return talk(FRANCE, {"num_predict": 40})


@pytest.fixture(scope="module")
def parts(talk: Talk) -> list[Any]:
    return list(talk(FRANCE, {"num_predict": 40}, stream=True))


def test_answer(answer: Any, model: str) -> None:
    assert answer.model == model and answer.done is True and answer.done_reason == "stop"
    assert answer.message.role == "assistant" and answer.message.content.endswith("Paris.")
    assert answer.created_at.endswith("Z")


def test_counts_and_times(answer: Any) -> None:
    assert answer.eval_count > 4 and answer.prompt_eval_count > 10
    assert answer.eval_duration > 0 and answer.prompt_eval_duration > 0
    assert answer.total_duration >= answer.eval_duration + answer.prompt_eval_duration


def test_only_the_last_line_is_done(parts: list[Any]) -> None:
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert {part.done_reason for part in parts[:-1]} == {None} and parts[-1].done_reason == "stop"


def test_stream_is_the_whole(parts: list[Any], answer: Any) -> None:
    assert "".join(part.message.content or "" for part in parts) == answer.message.content
    assert parts[-1].eval_count == answer.eval_count


def test_lines_on_the_wire(http: httpx.Client, model: str) -> None:
    answer = http.post("/api/chat", json={"model": model, "messages": [user("Hi")], "options": {"num_predict": 2}})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert all(json.loads(line)["message"]["role"] == "assistant" for line in answer.text.splitlines())


def test_asynchronous_client(server: RunningServer, model: str, talk: Talk) -> None:
    async def ask() -> str:
        async with ollama.AsyncClient(host=server.url, timeout=300) as client:
            options: Any = {"num_predict": 4, "temperature": 0}
            stream = await client.chat(model, messages=[user("Say hello.")], options=options, stream=True)
            return "".join([part.message.content or "" async for part in stream])

    assert asyncio.run(ask()) == talk().message.content


def test_generate_is_a_chat_of_one_message(llama: ollama.Client, model: str, answer: Any) -> None:
    options = {"num_predict": 40, "temperature": 0}
    assert llama.generate(model, FRANCE, options=options).response == answer.message.content
    streamed = llama.generate(model, FRANCE, options=options, stream=True)
    assert "".join(part.response for part in streamed) == answer.message.content


def test_system_of_generate(llama: ollama.Client, model: str) -> None:
    options = {"num_predict": 1, "temperature": 0}
    counts = {
        llama.generate(model, "Hi", system=system, options=options).prompt_eval_count
        for system in ("", "You are a pirate.")
    }
    assert len(counts) == 2


def test_options_may_be_left_out(llama: ollama.Client, model: str) -> None:
    assert "Paris" in (llama.chat(model, messages=[user(FRANCE)]).message.content or "")


def test_raw_prompt(llama: ollama.Client, model: str) -> None:
    options = {"num_predict": 1, "temperature": 0}
    assert llama.generate(model, "The capital of France is", raw=True, options=options).response == " Paris"


def test_nothing_asked_only_loads(llama: ollama.Client, model: str) -> None:
    assert llama.generate(model).done_reason == "load" and llama.chat(model).done_reason == "load"


@pytest.mark.parametrize("suffix", ["", ":latest"])
def test_name_with_and_without_a_tag(talk: Talk, model: str, suffix: str) -> None:
    assert talk(model=model + suffix).message.content


@pytest.mark.parametrize("limit", [1, 3])
def test_num_predict(talk: Talk, limit: int) -> None:
    answer = talk(options={"num_predict": limit})
    assert answer.eval_count == limit and answer.done_reason == "length"


@pytest.mark.parametrize("options", [{"top_k": 1}, later({"top_p": 0.001}), later({"min_p": 1})], ids=str)
def test_narrow_choice_is_greedy_at_any_temperature(talk: Talk, options: Any) -> None:
    assert talk(options={"temperature": 2, "seed": 1, **options}).message.content == talk().message.content


def test_seed_repeats(talk: Talk) -> None:
    options = {"temperature": 1.5, "top_k": 0, "top_p": 1, "num_predict": 8}
    texts = [talk(options={**options, "seed": seed}).message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("stop", [[" Paris", "x"], later(" Paris")], ids=str)
def test_stop(talk: Talk, stop: Any) -> None:
    answer = talk(FRANCE, {"num_predict": 40, "stop": stop})
    assert answer.message.content == "The capital of France is" and answer.done_reason == "stop"


@pytest.mark.parametrize(
    "option", [{"repeat_penalty": 1.8}, later({"presence_penalty": 2}), later({"frequency_penalty": 2})], ids=str
)
def test_penalties_break_a_loop(llama: ollama.Client, model: str, option: Any) -> None:
    loop = "The cat sat." + " The cat sat." * 4
    options = {"num_predict": 8, "temperature": 0}
    same = llama.generate(model, loop, raw=True, options=options).response
    assert same == " The cat sat." * 2
    assert llama.generate(model, loop, raw=True, options={**options, **option}).response != same


def test_logprobs(talk: Talk) -> None:
    answer = talk(logprobs=True, top_logprobs=2)
    assert "".join(row.token for row in answer.logprobs) == answer.message.content
    assert [len(row.top_logprobs) for row in answer.logprobs] == [2] * 4


@pytest.mark.parametrize(
    "fields", [{"keep_alive": "10m"}, {"keep_alive": -1}, {"think": False}, {"options": {"num_ctx": 2048}}], ids=str
)
def test_fields_that_change_nothing(talk: Talk, fields: dict[str, Any]) -> None:
    assert talk(**fields).message.content == talk().message.content


def test_list(llama: ollama.Client, model: str) -> None:
    (listed,) = llama.list().models
    assert listed.model == f"{model}:latest" and listed.digest and listed.modified_at is not None


def test_show(llama: ollama.Client, model: str) -> None:
    shown = llama.show(model)
    assert "completion" in (shown.capabilities or ()) and "im_start" in (shown.template or "")


def test_loaded(llama: ollama.Client, model: str) -> None:
    (loaded,) = llama.ps().models
    assert loaded.model == f"{model}:latest" and loaded.context_length == 8192


def test_version_is_one_that_clients_take(http: httpx.Client) -> None:
    version = http.get("/api/version").json()["version"]
    assert [int(number) for number in version.split(".")] >= [0, 6, 4]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "absent"}, 404), ({"options": {"temperature": 9}}, 400), ({"options": {"num_ctx": 10**6}}, 400),
        ({"options": {"stop": [""]}}, 400), ({"options": {"mirostat": 2}}, 400), ({"keep_alive": "soon"}, 400),
        ({"options": {"top_k": -5}}, 400), ({"options": {"seed": 2**70}}, 400), ({"top_logprobs": 3}, 400),
        ({"messages": [{"role": "user", "content": "Hi", "images": [b"1"]}]}, 400),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_refused(talk: Talk, fields: dict[str, Any], status: int, stream: bool) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        list(talk(stream=stream, **fields))
    assert refused.value.status_code == status and refused.value.error


@pytest.mark.parametrize("call", ["pull", "push", "delete"])
def test_models_are_not_managed(llama: ollama.Client, call: str) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        getattr(llama, call)("another")
    assert refused.value.status_code == 400

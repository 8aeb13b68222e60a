"""Ollama's own package, the way its first examples use it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import ollama
import pytest
from server_client import ServerClient

USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def sdk(client: ServerClient) -> Iterator[ollama.Client]:
    with client.ollama_sdk() as sdk:
        yield sdk


def test_models(sdk: ollama.Client) -> None:
    listed = sdk.list().models
    assert [model.model for model in listed] == ["scripted:latest", "org/other-name:latest"]
    assert all(model.modified_at is not None and model.details is not None for model in listed)
    (first, _) = sdk.ps().models
    assert first.context_length == 4096
    assert first.expires_at is not None
    shown = sdk.show("scripted")
    assert shown.capabilities == ["completion", "tools"]
    assert shown.template
    assert shown.modelinfo


def test_chat(sdk: ollama.Client) -> None:
    answer = sdk.chat("scripted", messages=USER, options={"temperature": 0}, keep_alive="10m")
    assert answer["message"]["content"] == answer.message.content
    assert answer.message.content
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.eval_count is not None
    assert answer.eval_duration is not None
    assert answer.eval_count / answer.eval_duration > 0
    follow_up = sdk.chat("scripted:latest", messages=[*USER, answer.message, *USER], options={"num_predict": 2})
    assert follow_up.prompt_eval_count is not None
    assert answer.prompt_eval_count is not None
    assert follow_up.prompt_eval_count > answer.prompt_eval_count


def test_chat_stream(sdk: ollama.Client) -> None:
    parts = list(sdk.chat("scripted", messages=USER, options={"temperature": 0}, stream=True))
    whole = sdk.chat("scripted", messages=USER, options={"temperature": 0})
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done
    assert (parts[-1].eval_count, parts[-1].prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)


def test_generate(sdk: ollama.Client) -> None:
    options = ollama.Options(num_predict=6, seed=4, temperature=1.0, top_k=20, num_ctx=2048, stop=["\n\n\n"])
    answer = sdk.generate("scripted", "Hello", system="Be brief", options=options, logprobs=True, top_logprobs=2)
    assert answer.eval_count == 6
    assert answer.logprobs is not None
    assert "".join(row.token for row in answer.logprobs) == answer.response
    assert all(row.top_logprobs is not None and len(row.top_logprobs) == 2 for row in answer.logprobs)
    stream = sdk.generate("scripted", "Hello", system="Be brief", options=options, stream=True)
    assert "".join(part.response or "" for part in stream) == answer.response
    assert sdk.generate("scripted", "Hello", raw=True, options=options).prompt_eval_count


def test_load(sdk: ollama.Client) -> None:
    assert sdk.generate("scripted").done_reason == "load"
    assert sdk.chat("scripted").done_reason == "load"


def test_async(client: ServerClient) -> None:
    async def ask() -> str:
        sdk = ollama.AsyncClient(host=str(client.base_url))
        try:
            stream = await sdk.chat("scripted", messages=USER, stream=True)
            return "".join([part.message.content or "" async for part in stream])
        finally:
            await sdk.close()

    assert asyncio.run(ask())


def test_errors(sdk: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as unknown:
        sdk.chat("nope", messages=USER)
    assert unknown.value.status_code == 404
    assert unknown.value.error.startswith("model 'nope' not found")
    with pytest.raises(ollama.ResponseError) as streamed:
        list(sdk.generate("scripted", "x", suffix="y", stream=True))
    assert streamed.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="num_ctx"):
        sdk.chat("scripted", messages=USER, options={"num_ctx": 1_000_000})


@pytest.mark.parametrize(("method", "arguments"), [
    ("pull", ["scripted"]), ("push", ["scripted"]), ("create", ["mine"]), ("copy", ["scripted", "mine"]),
    ("delete", ["scripted"]), ("embed", ["scripted", "text"]), ("embeddings", ["scripted", "text"]),
])  # fmt: skip
def test_what_is_not_there(sdk: ollama.Client, method: str, arguments: list[str]) -> None:
    with pytest.raises(ollama.ResponseError, match="support") as refused:
        getattr(sdk, method)(*arguments)
    assert refused.value.status_code == 400
    assert sdk.list().models[0].model == "scripted:latest"


def test_a_stream_that_breaks(start_server: Any) -> None:
    with start_server(crash_after=5) as client:
        with client.ollama_sdk() as sdk, pytest.raises(ollama.ResponseError, match="engine"):
            list(sdk.generate("scripted", "Hello", options={"num_predict": 500}, stream=True))

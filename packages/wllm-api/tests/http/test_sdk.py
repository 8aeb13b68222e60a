"""OpenAI's own SDK, the way its first examples use it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest


@pytest.fixture
def sdk(client: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["scripted", "org/other-name"]
    assert sdk.models.retrieve("org/other-name").id == "org/other-name"


def test_chat(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=2
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None


def test_chat_stream(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(
        model="scripted", messages=[{"role": "user", "content": "Hi"}], temperature=0,
        stream_options={"include_usage": True},
    ) as stream:  # fmt: skip
        final = stream.get_final_completion()
    whole = sdk.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "Hi"}], temperature=0)
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_completions(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="scripted", prompt=["a", "b"], max_tokens=3, logprobs=2, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    stream = sdk.completions.create(model="scripted", prompt="a", stream=True, extra_body={"top_k": 5})
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("stop", "length")


def test_async(client: httpx.Client) -> None:
    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none") as sdk:
            stream = await sdk.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(ask())


def test_errors_have_their_classes(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        sdk.chat.completions.create(model="nope", messages=[{"role": "user", "content": "Hi"}])
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        sdk.completions.create(model="scripted", prompt=[5] * 5000)
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "prompt"


def test_client_waits_while_the_model_loads(start_server: Any) -> None:
    with start_server(ready=False, load_s=1.0) as client:
        with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none") as sdk:
            assert sdk.completions.create(model="scripted", prompt="a").choices[0].text

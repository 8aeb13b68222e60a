"""The model's side of a request: recommended sampling, limits, a missing or broken tokenizer."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from wllm_api.app import create_app
from wllm_api.client import EventSource
from wllm_api.engine.scripted_model import build_tokenizer, describe
from wllm_api.errors import EngineState, TemplateError
from wllm_api.hosting import HostedModel
from wllm_api.http_errors import ContextLengthExceeded, InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.params import sampling_params
from wllm_api.schemas.completions import CompletionRequest
from wllm_api.server import serve
from wllm_api.text import ChatTemplate
from wllm_sched.messages import EngineStats, ModelInfo
from wllm_sched.sampling import SamplingParams

INFO = describe(build_tokenizer(), max_model_len=100, num_blocks=10, chat_template=None)


def params_of(info: ModelInfo = INFO, **fields: Any) -> SamplingParams:
    body = CompletionRequest.model_validate({"prompt": "Hi", **fields})
    model = ServedModel(info)
    return sampling_params(body, model, max_tokens=5, logprobs=None, prompt_logprobs=None, cache_salt="")


def test_model_recommends_where_the_client_is_silent() -> None:
    info = replace(INFO, default_sampling={"temperature": 0.6, "top_k": 20.0, "top_p": 0.95, "unheard_of": 1.0})
    silent = params_of(info)
    assert (silent.temperature, silent.top_k, silent.top_p) == (0.6, 20, 0.95)
    loud = params_of(info, temperature=1.5, top_k=-1, top_p=1.0)
    assert (loud.temperature, loud.top_k, loud.top_p) == (1.5, 0, 1.0)
    assert params_of(info, temperature=None).temperature == 0.6


def test_without_recommendation_the_defaults_are_openais() -> None:
    params = params_of()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)


@pytest.mark.parametrize("top_k", [512, 10**30])
def test_top_k_above_the_vocabulary_is_off(top_k: int) -> None:
    assert params_of(top_k=top_k).top_k == 0


def test_bad_words_become_ids() -> None:
    assert params_of(bad_words=["the"]).bad_words_token_ids


def test_contradiction_names_its_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        params_of(min_tokens=6)
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize(("prompt", "wanted", "room"), [
    (10, 5, 5), (10, None, 90), (99, None, 1), (99, 1, 1), (100, 0, 0), (1, 99, 99),
])  # fmt: skip
def test_room(prompt: int, wanted: int | None, room: int) -> None:
    assert ServedModel(INFO).room(prompt, wanted, "prompt") == room


@pytest.mark.parametrize(("prompt", "wanted"), [(100, None), (100, 1), (101, 0), (99, 2), (1, 100)])
def test_no_room(prompt: int, wanted: int | None) -> None:
    with pytest.raises(ContextLengthExceeded, match=f"maximum context length is 100 tokens. However, .*{prompt}"):
        ServedModel(INFO).room(prompt, wanted, "prompt")


def test_model_without_a_tokenizer_takes_ids_and_gives_empty_text() -> None:
    model = ServedModel(replace(INFO, tokenizer_json=None))
    assert model.tokenizer.decode([0, 5, 99]) == ""
    assert model.tokenizer.token_text(5) == ""
    with pytest.raises(InvalidRequest, match=r"without a tokenizer.*'prompt'.*--skip-tokenizer-init"):
        asyncio.run(model.encode("Hi", add_special_tokens=True, param="prompt"))
    for field in ({"stop": ["x"]}, {"bad_words": ["x"]}):
        with pytest.raises(InvalidRequest, match="without a tokenizer"):
            params_of(replace(INFO, tokenizer_json=None), **field)


def test_broken_template_is_told_and_kept_for_chat() -> None:
    model = ServedModel(replace(INFO, chat_template="{% if %}"))
    assert model.template is None
    with pytest.raises(TemplateError):
        ChatTemplate("{% if %}", {})
    assert "chat template does not work" in model.template_error


class ReadyEngine:
    """An engine that is ready at once, with the given facts."""

    stats = EngineStats()
    num_restarts = 0
    error = None

    def __init__(self, info: ModelInfo) -> None:
        self.state: EngineState = "stopped"
        self.info: ModelInfo | None = info

    async def start(self) -> None:
        self.state = "ready"

    async def wait_ready(self) -> ModelInfo:
        assert self.info is not None
        return self.info

    async def stop(self) -> None:
        self.state = "stopped"

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> EventSource:
        raise NotImplementedError


def test_broken_tokenizer_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app([HostedModel(ReadyEngine(replace(INFO, tokenizer_json="{}")), ["m"])])
    assert serve(app, "127.0.0.1", 0) == 1
    assert "TokenizerError" in caplog.text

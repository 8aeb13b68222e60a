"""Each field of a request is done, without effect, refused or named: never silently dropped."""

from collections.abc import Collection

import pytest
from anthropic.types.beta.message_count_tokens_params import MessageCountTokensParams as BetaCountParams
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaMessageParams
from anthropic.types.message_count_tokens_params import MessageCountTokensParams as CountParams
from anthropic.types.message_create_params import MessageCreateParamsBase as MessageParams
from ollama import _types as ollama_types
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.input_token_count_params import InputTokenCountParams as InputTokenParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams
from pydantic import ValidationError

from wllm_api.http_errors import HttpError
from wllm_api.schemas.base import Body
from wllm_api.schemas.chat import ChatRequest
from wllm_api.schemas.completions import CompletionRequest
from wllm_api.schemas.messages import CountTokensRequest, MessagesRequest
from wllm_api.schemas.ollama import OllamaChatRequest, OllamaGenerateRequest
from wllm_api.schemas.responses import InputTokensRequest, ResponsesRequest

USER = [{"role": "user", "content": "Hi"}]
ALL = [(ChatRequest, {"messages": USER}), (CompletionRequest, {"prompt": "Hi"})]
EVERY = [
    *ALL,
    (MessagesRequest, {"messages": USER, "max_tokens": 5}),
    (CountTokensRequest, {"messages": USER}),
    (ResponsesRequest, {"input": "Hi"}),
    (InputTokensRequest, {"input": "Hi"}),
    (OllamaChatRequest, {"model": "m", "messages": USER}),
    (OllamaGenerateRequest, {"model": "m", "prompt": "Hi"}),
]


def check(schema: type[Body], data: dict[str, object]) -> Body:
    schema.refuse_unsupported(data)
    return schema.model_validate(data)


@pytest.mark.parametrize(("schema", "minimal"), EVERY)
def test_every_optional_field_may_be_null(schema: type[Body], minimal: dict[str, object]) -> None:
    names = [*schema.model_fields, *schema.no_effect, *schema.unsupported]
    nulls = {name: None for name in names if name not in minimal}
    assert check(schema, {**nulls, **minimal}) == check(schema, minimal)
    assert schema.ignored({**nulls, **minimal, "unheard_of": None}) == []


@pytest.mark.parametrize(("schema", "minimal"), EVERY)
def test_unsupported_fields_are_refused_by_name(schema: type[Body], minimal: dict[str, object]) -> None:
    for name, harmless in schema.unsupported.items():
        with pytest.raises(HttpError) as caught:
            check(schema, {**minimal, name: {"a": "real wish"}})
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
        for value in harmless:
            check(schema, {**minimal, name: value})


@pytest.mark.parametrize(("schema", "minimal"), EVERY)
def test_no_field_has_two_fates(schema: type[Body], minimal: dict[str, object]) -> None:
    done = set(schema.model_fields)
    assert not done & schema.no_effect
    assert not done & schema.unsupported.keys()
    assert not schema.no_effect & schema.unsupported.keys()


def test_fields_left_out_stay_the_models_choice() -> None:
    """The model's recommendation stands where the request says nothing."""
    message = MessagesRequest.model_validate({"messages": USER, "max_tokens": 5})
    assert message.sampling().model_fields_set == {"stop"}
    assert ResponsesRequest.model_validate({"input": "Hi"}).sampling().model_fields_set == set()


def test_many_unknown_fields() -> None:
    assert len(ChatRequest.ignored({"messages": USER, **{f"f{number}": 1 for number in range(500)}})) == 500


def test_unknown_fields_inside_are_named_once_each() -> None:
    call = {"id": "1", "index": 0, "function": {"name": "f", "mood": 1}}
    data = {
        "messages": [{"role": "assistant", "tool_calls": [call, call]}, {**USER[0], "annotations": [], "audio": None}],
        "stream_options": {"include_cost": True},
        "tools": [{"function": {"name": "f", "parameters": {"anything": "goes"}}, "cache_control": {}}, 7],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [], "more": 1}, "function": {}},
        "chat_template_kwargs": {"mood": 1},
        "zzz": [],
    }
    assert ChatRequest.ignored(data) == [
        "zzz", "stream_options.include_cost", "tools.cache_control", "messages.tool_calls.index",
        "tool_choice.allowed_tools.more", "messages.tool_calls.function.mood",
    ]  # fmt: skip


def test_unknown_fields_are_named() -> None:
    assert ChatRequest.ignored({"messages": [], "zzz": 1, "user": "me"}) == ["zzz"]


@pytest.mark.parametrize("fields", [
    {"n": 0}, {"n": -1}, {"n": 129}, {"n": 1_000_000}, {"n": "2"}, {"n": True}, {"n": 1.5},
    {"temperature": -0.1}, {"temperature": 2.1}, {"temperature": "hot"}, {"top_p": 1.1}, {"top_p": -1},
    {"top_k": -2}, {"min_p": 2}, {"repetition_penalty": 0}, {"presence_penalty": 3}, {"frequency_penalty": -3},
    {"seed": 2**63}, {"seed": -(2**63) - 1}, {"seed": "7"}, {"stop": ""}, {"stop": ["a", ""]}, {"stop": [1]},
    {"stop": ["a"] * 17}, {"stop": "a" * 5000}, {"stop": {}}, {"logit_bias": {"abc": 1}}, {"logit_bias": {"5": 1000}},
    {"logit_bias": {"5": "x"}}, {"logit_bias": {"05": 1}}, {"logit_bias": {"1_0": 1}},
    {"logit_bias": {" 5": 1}}, {"logit_bias": {"٣": 1}}, {"logit_bias": {"9" * 5000: 1}}, {"logit_bias": {"": 1}},
    {"stop_token_ids": [5] * 1025}, {"allowed_token_ids": [5] * (2**19 + 1)},
    {"logit_bias": [1]}, {"max_tokens": -2}, {"max_tokens": "9"}, {"max_tokens": 1.5},
    {"stream": "yes"}, {"stream_options": {"include_usage": True}}, {"stream": True, "stream_options": 3},
    {"stop_token_ids": [-1]}, {"prompt_logprobs": 21}, {"prompt_logprobs": -1}, {"request_id": "a b"},
    {"truncate_prompt_tokens": -2}, {"priority": "high"}, {"cache_salt": 3}, {"bad_words": [3]},
    {"bad_words": ["a"] * 1001},
])  # fmt: skip
@pytest.mark.parametrize(("schema", "minimal"), ALL)
def test_values_out_of_range(schema: type[Body], minimal: dict[str, object], fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        check(schema, {**minimal, **fields})


@pytest.mark.parametrize("fields", [
    {"stop": []}, {"stop": "x"}, {"logit_bias": {}}, {"logit_bias": {str(key): 1 for key in range(300)}},
    {"seed": 0}, {"seed": -1}, {"top_k": -1}, {"top_k": 10**30}, {"top_p": 0}, {"temperature": 1e-30},
    {"max_tokens": -1}, {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"},
])  # fmt: skip
@pytest.mark.parametrize(("schema", "minimal"), ALL)
def test_values_in_range(schema: type[Body], minimal: dict[str, object], fields: dict[str, object]) -> None:
    assert schema.ignored({**minimal, **fields}) == []
    check(schema, {**minimal, **fields})


@pytest.mark.parametrize("fields", [
    {"max_tokens": 0}, {"max_completion_tokens": 0}, {"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21},
    {"logprobs": True, "top_logprobs": -1}, {"continue_final_message": True},
    {"chat_template_kwargs": {"messages": []}}, {"chat_template_kwargs": {"tools": []}},
    {"messages": [{"role": "robot", "content": "x"}]}, {"reasoning_effort": "very"},
    {"functions": [{"name": "f"}], "tools": [{"type": "function", "function": {"name": "f"}}]},
    {"function_call": "auto", "tool_choice": "auto"}, {"function_call": {"name": "f"}}, {"function_call": "required"},
    {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
    {"messages": [{"role": "assistant", "function_call": {"name": "f"}, "tool_calls": [{"function": {"name": "f"}}]}]},
])  # fmt: skip
def test_chat_contradictions(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        check(ChatRequest, {"messages": USER, **fields})


@pytest.mark.parametrize("fields", [
    {"chat_template": "{{ 1 }}"}, {"guided_whitespace_pattern": " "},
    {"best_of": 2}, {"suffix": "x"}, {"modalities": ["text", "audio"]},
    {"use_beam_search": True},
])  # fmt: skip
def test_chat_refuses_what_it_cannot_do(fields: dict[str, object]) -> None:
    with pytest.raises(HttpError) as caught:
        check(ChatRequest, {"messages": USER, **fields})
    assert caught.value.status == 400
    assert caught.value.param in fields


@pytest.mark.parametrize("fields", [
    {"tools": None, "tool_choice": None, "parallel_tool_calls": None}, {"tools": []},
    {"tools": [], "tool_choice": "none"},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    {"response_format": {"type": "text"}}, {"modalities": ["text"]}, {"function_call": "none"}, {"functions": []},
    {"best_of": 1}, {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
])  # fmt: skip
def test_chat_takes_the_harmless_forms(fields: dict[str, object]) -> None:
    check(ChatRequest, {"messages": USER, **fields})


@pytest.mark.parametrize("prompt", [
    [], [[]], ["a", 3], [1, "a"], [[1], "a"], [1.5], [True], [[1], []], 7, {"a": 1}, [None], [[None]],
])  # fmt: skip
def test_bad_prompts(prompt: object) -> None:
    with pytest.raises(ValidationError):
        check(CompletionRequest, {"prompt": prompt})


@pytest.mark.parametrize(("prompt", "prompts"), [
    ("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""]),
])  # fmt: skip
def test_prompt_forms(prompt: object, prompts: object) -> None:
    body = check(CompletionRequest, {"prompt": prompt})
    assert isinstance(body, CompletionRequest)
    assert body.prompts == prompts


@pytest.mark.parametrize("fields", [
    {"best_of": 0}, {"best_of": 1, "n": 2}, {"best_of": 129}, {"best_of": 2, "stream": True}, {"best_of": "2"},
    {"suffix": 3}, {"echo": True, "suffix": "x"}, {"truncate_prompt_tokens": 3, "suffix": "x"},
])  # fmt: skip
def test_completion_contradictions(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        check(CompletionRequest, {"prompt": "a", **fields})


@pytest.mark.parametrize(
    "wrong", [[1.5] * 100_000, [{}] * 100_000, [[[]]] * 100_000, {str(number): {} for number in range(100_000)}]
)
@pytest.mark.parametrize(("schema", "minimal"), EVERY)
def test_long_wrong_value_has_a_short_report(schema: type[Body], minimal: dict[str, object], wrong: object) -> None:
    reports = []
    for name in schema.model_fields:
        try:
            check(schema, {**minimal, name: wrong})
        except ValidationError as error:
            reports.append(error.error_count())
        except HttpError:
            continue
    assert reports
    # One a branch of what the field may be, not one an entry.
    assert max(reports) < 40


@pytest.mark.parametrize("fields", [
    {"best_of": 1}, {"best_of": 1, "stream": True}, {"best_of": 2, "n": 2, "stream": True}, {"best_of": 3, "n": 2},
    {"suffix": ""}, {"suffix": "", "echo": True}, {"suffix": "x", "echo": False},
])  # fmt: skip
def test_completion_takes_what_fits_together(fields: dict[str, object]) -> None:
    check(CompletionRequest, {"prompt": "a", **fields})


@pytest.mark.parametrize(("schema", "parameters"), [
    (ChatRequest, ChatParams.__annotations__), (CompletionRequest, CompletionParams.__annotations__),
    (ResponsesRequest, ResponseParams.__annotations__), (InputTokensRequest, InputTokenParams.__annotations__),
    (MessagesRequest, MessageParams.__annotations__),
    (CountTokensRequest, CountParams.__annotations__),
    # These may be headers.
    (MessagesRequest, BetaMessageParams.__annotations__.keys() - {"betas"}),
    (CountTokensRequest, BetaCountParams.__annotations__.keys() - {"betas"}),
    (OllamaChatRequest, ollama_types.ChatRequest.model_fields),
    (OllamaGenerateRequest, ollama_types.GenerateRequest.model_fields),
    (OllamaChatRequest, {"options": dict.fromkeys(ollama_types.Options.model_fields, 1)}),
])  # fmt: skip
def test_every_parameter_of_the_clients_is_known(schema: type[Body], parameters: Collection[str]) -> None:
    given = parameters if isinstance(parameters, dict) else dict.fromkeys(parameters, 1)
    assert schema.ignored(given) == []

"""Every field of a chat request changes something that a client, a template or the engine can see."""

from collections.abc import Callable
from typing import Any

import pytest

from wllm_api.schemas.chat import ChatRequest

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "Say hi."}
LOOK = {"name": "look", "description": "Look at it", "parameters": {"type": "object", "properties": {"at": {}}}}
# A keyword that calls cannot be held to.
STRICT = {"strict": True, "parameters": {"if": {"type": "object"}}}
TOOL = {"type": "function", "function": LOOK}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "look"}}
CALL = {"id": "call_7", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
FORM = {"type": "object", "properties": {"a": {"const": 1}}}
# Long enough for several blocks of the prefix cache.
LONG = {"role": "user", "content": "A long question about one thing. " * 4}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"temperature": 0, "messages": list(messages) or [USER], **fields}


def said(**fields: Any) -> dict[str, Any]:
    """A conversation in which the assistant said something."""
    return chat(USER, {"role": "assistant", **fields}, USER)


# What each case's check sees, see the folder's conftest.
Seen = Any
CASES: list[tuple[str, dict[str, Any], Callable[[Seen], object]]] = [
    ("model", chat(model="org/other-name"), lambda s: s.body["model"] == "org/other-name"),
    ("messages", chat(USER), lambda s: "Say hi." in s.prompt),
    ("messages.role", chat({"role": "user", "content": "a"}), lambda s: "<|im_start|>user|" in s.prompt),
    ("messages.content", chat(USER), lambda s: "Say hi." in s.prompt),
    ("messages.name", chat({**USER, "name": "Ann"}), lambda s: "user|Ann|" in s.prompt),
    ("messages.refusal", said(refusal="I won't."), lambda s: "I won't." in s.prompt),
    ("messages.reasoning", said(content="", reasoning="Hm."), lambda s: "|Hm.\n" in s.prompt),
    ("messages.reasoning_content", said(content="", reasoning_content="Hm."), lambda s: "|Hm.\n" in s.prompt),
    ("messages.function_call", said(function_call=CALL["function"]), lambda s: '"name": "look"' in s.prompt),
    ("messages.function_call.name", said(function_call=CALL["function"]), lambda s: '"name": "look"' in s.prompt),
    ("messages.function_call.arguments", said(function_call=CALL["function"]), lambda s: '{"at": "it"}' in s.prompt),
    ("messages.tool_calls", said(tool_calls=[CALL]), lambda s: '"name": "look"' in s.prompt),
    ("messages.tool_calls.id", said(tool_calls=[CALL]), lambda s: "<tool_call>call_7 " in s.prompt),
    ("messages.tool_calls.function", said(tool_calls=[CALL]), lambda s: '"name": "look"' in s.prompt),
    ("messages.tool_calls.function.name", said(tool_calls=[CALL]), lambda s: '"name": "look"' in s.prompt),
    ("messages.tool_calls.function.arguments", said(tool_calls=[CALL]), lambda s: '{"at": "it"}' in s.prompt),
    ("messages.tool_call_id", chat(USER, {"role": "tool", "content": "x", "tool_call_id": "call_7"}),
     lambda s: "tool||call_7|" in s.prompt),
    ("max_tokens", chat(max_tokens=3), lambda s: s.body["usage"]["completion_tokens"] == 3),
    ("max_completion_tokens", chat(max_completion_tokens=4, max_tokens=3),
     lambda s: s.body["usage"]["completion_tokens"] == 4),
    ("logprobs", chat(logprobs=True), lambda s: s.choice["logprobs"] is not None),
    ("top_logprobs", chat(logprobs=True, top_logprobs=2),
     lambda s: len(s.choice["logprobs"]["content"][0]["top_logprobs"]) == 2),
    ("functions", chat(functions=[LOOK]), lambda s: "Look at it" in s.prompt),
    ("functions.name", chat(functions=[LOOK]), lambda s: '"name": "look"' in s.prompt),
    ("functions.description", chat(functions=[LOOK]), lambda s: "Look at it" in s.prompt),
    ("functions.strict", chat(functions=[{**LOOK, **STRICT}]), lambda s: s.refused),
    ("functions.parameters", chat(functions=[LOOK]), lambda s: '{"at": {}}' in s.prompt),
    ("function_call", chat(functions=[LOOK], function_call={"name": "look"}), lambda s: s.forced),
    ("function_call.name", chat(functions=[LOOK], function_call={"name": "look"}), lambda s: s.forced),
    ("tools", chat(tools=[TOOL]), lambda s: "Look at it" in s.prompt),
    ("tools.function", chat(tools=[TOOL]), lambda s: "Look at it" in s.prompt),
    ("tools.function.name", chat(tools=[TOOL]), lambda s: '"name": "look"' in s.prompt),
    ("tools.function.description", chat(tools=[TOOL]), lambda s: "Look at it" in s.prompt),
    ("tools.function.strict", chat(tools=[{"function": {**LOOK, **STRICT}}]), lambda s: s.refused),
    ("tools.function.parameters", chat(tools=[TOOL]), lambda s: '{"at": {}}' in s.prompt),
    ("tool_choice", chat(tools=[TOOL], tool_choice="required"), lambda s: s.forced),
    ("tool_choice.type", chat(tools=[TOOL], tool_choice=NAMED), lambda s: s.forced),
    ("tool_choice.function", chat(tools=[TOOL], tool_choice=NAMED), lambda s: s.forced),
    ("tool_choice.function.name", chat(tools=[TOOL], tool_choice=NAMED), lambda s: s.forced),
    ("tool_choice.allowed_tools", chat(tools=[TOOL, NOW], tool_choice=ALLOWED), lambda s: s.forced),
    ("tool_choice.allowed_tools.mode", chat(tools=[TOOL, NOW], tool_choice=ALLOWED), lambda s: s.forced),
    ("tool_choice.allowed_tools.tools", chat(tools=[TOOL, NOW], tool_choice=ALLOWED), lambda s: "now" not in s.prompt),
    ("tool_choice.allowed_tools.tools.type", chat(tools=[TOOL, NOW], tool_choice=ALLOWED),
     lambda s: "now" not in s.prompt),
    ("tool_choice.allowed_tools.tools.function", chat(tools=[TOOL, NOW], tool_choice=ALLOWED),
     lambda s: "now" not in s.prompt),
    ("tool_choice.allowed_tools.tools.function.name", chat(tools=[TOOL, NOW], tool_choice=ALLOWED),
     lambda s: "now" not in s.prompt),
    ("reasoning_effort", chat(reasoning_effort="low"), lambda s: "low True " in s.prompt),
    ("add_generation_prompt", chat(add_generation_prompt=False), lambda s: not s.prompt.endswith("assistant\n")),
    ("continue_final_message", chat(USER, {"role": "assistant", "content": "We"}, continue_final_message=True),
     lambda s: s.prompt.endswith("\nWe")),
    ("add_special_tokens", chat(add_special_tokens=True), lambda s: s.ids[0] == 1),
    ("echo", chat(USER, {"role": "assistant", "content": "We"}, continue_final_message=True, echo=True),
     lambda s: s.text.startswith("We I have read")),
    ("chat_template_kwargs", chat(chat_template_kwargs={"mood": "cheerful"}), lambda s: " cheerful\n" in s.prompt),
    ("n", chat(n=3), lambda s: len(s.body["choices"]) == 3),
    ("temperature", chat(temperature=0.25), lambda s: s.params.temperature == 0.25),
    ("top_p", chat(top_p=0.5), lambda s: s.params.top_p == 0.5),
    ("top_k", chat(top_k=7), lambda s: s.params.top_k == 7),
    ("min_p", chat(min_p=0.125), lambda s: s.params.min_p == 0.125),
    ("repetition_penalty", chat(repetition_penalty=1.5), lambda s: s.params.repetition_penalty == 1.5),
    ("presence_penalty", chat(presence_penalty=-1), lambda s: s.params.presence_penalty == -1),
    ("frequency_penalty", chat(frequency_penalty=2), lambda s: s.params.frequency_penalty == 2),
    ("seed", chat(seed=-5), lambda s: s.params.seed == -5),
    ("stop", chat(stop=[" tokens"]), lambda s: "tokens" not in s.text and "read" in s.text),
    ("logit_bias", chat(logit_bias={"65": 100}, max_tokens=2, return_token_ids=True),
     lambda s: s.choice["token_ids"] == [65, 65]),
    ("stream", chat(stream=True), lambda s: s.streams),
    ("stream_options", chat(stream=True, stream_options={"include_usage": True}), lambda s: s.lines[-1].get("usage")),
    ("stream_options.include_usage", chat(stream=True, stream_options={"include_usage": True}),
     lambda s: s.lines[-1].get("usage")),
    ("stream_options.continuous_usage_stats", chat(stream=True, stream_options={"continuous_usage_stats": True}),
     lambda s: all(chunk.get("usage") for chunk in s.lines)),
    ("response_format", chat(response_format={"type": "json_object"}), lambda s: s.params.grammar.bounds_numbers),
    ("structured_outputs", chat(structured_outputs={"regex": "yes|no"}), lambda s: "yes|no" in s.params.grammar.text),
    ("guided_json", chat(guided_json=FORM), lambda s: s.params.grammar.bounds_numbers),
    ("guided_regex", chat(guided_regex="yes|no"), lambda s: "yes|no" in s.params.grammar.text),
    ("guided_choice", chat(guided_choice=["yes", "no"]), lambda s: "yes" in s.params.grammar.text),
    ("guided_grammar", chat(guided_grammar='start: "yes"'), lambda s: "yes" in s.params.grammar.text),
    ("min_tokens", chat(min_tokens=40, max_tokens=45), lambda s: s.params.min_tokens == 40),
    ("ignore_eos", chat(ignore_eos=True, max_tokens=80), lambda s: s.body["usage"]["completion_tokens"] == 80),
    ("stop_token_ids", chat(stop_token_ids=[65], logit_bias={"65": 100}, max_tokens=5),
     lambda s: s.body["usage"]["completion_tokens"] == 1),
    ("include_stop_str_in_output", chat(stop=[" tokens"], include_stop_str_in_output=True),
     lambda s: s.text.endswith(" tokens")),
    ("skip_special_tokens", chat(skip_special_tokens=False, logit_bias={"1": 100}, max_tokens=2),
     lambda s: s.text == "<|im_start|>" * 2),
    ("bad_words", chat(bad_words=["the"]), lambda s: s.params.bad_words_token_ids),
    ("allowed_token_ids", chat(allowed_token_ids=[65], max_tokens=2, return_token_ids=True),
     lambda s: s.choice["token_ids"] == [65, 65]),
    ("prompt_logprobs", chat(prompt_logprobs=1), lambda s: len(s.body["prompt_logprobs"]) == len(s.ids)),
    ("truncate_prompt_tokens", chat(truncate_prompt_tokens=5), lambda s: len(s.ids) == 5),
    ("priority", chat(priority=-3), lambda s: s.params.priority == -3),
    ("cache_salt", chat(cache_salt="mine"), lambda s: s.params.cache_salt == "mine"),
    ("request_id", chat(request_id="mine-1"), lambda s: s.body["id"] == "chatcmpl-mine-1"),
    ("timings_per_token", chat(timings_per_token=True), lambda s: s.body["timings"]["predicted_n"] > 0),
    ("return_token_ids", chat(return_token_ids=True), lambda s: s.body["prompt_token_ids"] == s.ids),
    ("return_tokens_as_token_ids", chat(return_tokens_as_token_ids=True, logprobs=True),
     lambda s: s.choice["logprobs"]["content"][0]["token"].startswith("token_id:")),
]  # fmt: skip
CALLER_CASES: list[tuple[str, dict[str, Any], Callable[[Seen], object]]] = [
    ("tools", chat(tools=[TOOL]), lambda s: len(s.message["tool_calls"]) == 2),
    ("functions", chat(functions=[LOOK]), lambda s: s.message["function_call"]["name"] == "look"),
    ("parallel_tool_calls", chat(tools=[TOOL], parallel_tool_calls=False), lambda s: len(s.message["tool_calls"]) == 1),
    ("include_reasoning", chat(include_reasoning=False), lambda s: "reasoning" not in s.message),
]  # fmt: skip
WITHOUT_EFFECT = {
    # There is one value.
    "messages.tool_calls.type", "tools.type",
    # No chunk is padded.
    "stream_options.include_obfuscation",
}  # fmt: skip


def ids(cases: list[Any]) -> list[str]:
    return [field for field, _, _ in cases]


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_field(probe: Any, case: Any) -> None:
    probe.check(PATH, case)


@pytest.mark.parametrize("case", CALLER_CASES, ids=ids(CALLER_CASES))
def test_field_of_an_answer_with_calls(caller: Any, case: Any) -> None:
    caller.check(PATH, case)


def test_every_field_has_a_case(complete: Callable[..., None]) -> None:
    complete([*CASES, *CALLER_CASES], ChatRequest, WITHOUT_EFFECT)


@pytest.mark.parametrize("check", [lambda s: s.text, lambda s: s.prompt, lambda s: s.params.n == 1])
def test_field_that_nobody_would_miss_is_found(probe: Any, check: Callable[[Seen], object]) -> None:
    with pytest.raises(AssertionError, match="'user' could be ignored"):
        probe.check(PATH, ("user", chat(user="Ann"), check))


def test_salt_keeps_prefixes_apart(probe: Any) -> None:
    def cached(**fields: Any) -> int:
        count: int = probe.post(PATH, chat(LONG, **fields)).body["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="two") == 0
    assert cached() == 0
    assert cached(cache_salt="one") == cached(cache_salt="two") == cached() > 0

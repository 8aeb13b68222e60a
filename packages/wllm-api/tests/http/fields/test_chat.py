"""Every field of a chat request changes something that a client, a template or the engine can see."""

from typing import Any

import pytest
from field_cases import sampled
from field_probe import Case, Check, Probe, each_of, has_all

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
# Long enough for several blocks of the prefix cache.
LONG = {"role": "user", "content": "A long question about one thing. " * 4}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"temperature": 0, "messages": list(messages) or [USER], **fields}


def said(**fields: Any) -> dict[str, Any]:
    """A conversation in which the assistant said something."""
    return chat(USER, {"role": "assistant", **fields}, USER)


CASES: list[Case] = [
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
    ("prompt_logprobs", chat(prompt_logprobs=1), lambda s: len(s.body["prompt_logprobs"]) == len(s.ids)),
    ("return_token_ids", chat(return_token_ids=True), lambda s: s.body["prompt_token_ids"] == s.ids),
    ("return_tokens_as_token_ids", chat(return_tokens_as_token_ids=True, logprobs=True),
     lambda s: s.choice["logprobs"]["content"][0]["token"].startswith("token_id:")),
    *sampled(chat, ChatRequest),
]  # fmt: skip
CALLER_CASES: list[Case] = [
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


@each_of(CASES)
def test_field(probe: Probe, case: Case) -> None:
    probe.check(PATH, case)


@each_of(CALLER_CASES)
def test_field_of_an_answer_with_calls(caller: Probe, case: Case) -> None:
    caller.check(PATH, case)


def test_every_field_has_a_case() -> None:
    has_all([*CASES, *CALLER_CASES], ChatRequest, WITHOUT_EFFECT)


@pytest.mark.parametrize("check", [lambda s: s.text, lambda s: s.prompt, lambda s: s.params.n == 1])
def test_field_that_nobody_would_miss_is_found(probe: Probe, check: Check) -> None:
    with pytest.raises(AssertionError, match="'user' could be ignored"):
        probe.check(PATH, ("user", chat(user="Ann"), check))


def test_salt_keeps_prefixes_apart(probe: Probe) -> None:
    def cached(**fields: Any) -> int:
        count: int = probe.post(PATH, chat(LONG, **fields)).body["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="two") == 0
    assert cached() == 0
    assert cached(cache_salt="one") == cached(cache_salt="two") == cached() > 0

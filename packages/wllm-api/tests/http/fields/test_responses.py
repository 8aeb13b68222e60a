"""Every field of a response request changes something that a client, a template or the engine can see."""

from typing import Any

import pytest
from field_cases import sampled
from field_probe import Case, Probe, Seen, each_of, has_all

from wllm_api.schemas.responses import InputTokensRequest, ResponsesRequest

PATH = "/v1/responses"
USER = {"type": "message", "role": "user", "content": "Say hi."}
LOOK = {"type": "function", "name": "look", "description": "Look at it", "parameters": {"properties": {"at": {}}}}
NOW = {"type": "function", "name": "now"}
NAMED = {"type": "function", "name": "look"}
GROUP = {"type": "namespace", "name": "eyes", "description": "For seeing", "tools": [LOOK]}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
CALL = {"type": "function_call", "call_id": "call_7", "name": "look", "arguments": '{"at": "it"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_7", "output": "A cat"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
FORM = {"type": "json_schema", "name": "form", "schema": {"type": "object", "properties": {"a": {"const": 1}}}}
LOGPROBS = ["message.output_text.logprobs"]


def ask(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"temperature": 0, "input": list(items) or [USER], **fields}


def rows(seen: Seen) -> Any:
    """The log-probabilities of the text."""
    return seen.body["output"][0]["content"][0]["logprobs"]


def calls(seen: Seen) -> int:
    return [item["type"] for item in seen.body["output"]].count("function_call")


CASES: list[Case] = [
    ("model", ask(model="org/other-name"), lambda s: s.body["model"] == "org/other-name"),
    ("input", ask(), lambda s: "Say hi." in s.prompt),
    ("input.type", ask(USER, CALL, OUTPUT), lambda s: "A cat" in s.prompt),
    ("input.role", ask(), lambda s: "user|" in s.prompt),
    ("input.content", ask(), lambda s: "Say hi." in s.prompt),
    ("input.call_id", ask(USER, CALL, OUTPUT), lambda s: "<tool_call>call_7 " in s.prompt),
    ("input.name", ask(USER, CALL, OUTPUT), lambda s: '"name": "look"' in s.prompt),
    ("input.arguments", ask(USER, CALL, OUTPUT), lambda s: '{"at": "it"}' in s.prompt),
    ("input.output", ask(USER, CALL, OUTPUT), lambda s: "A cat" in s.prompt),
    ("input.summary", ask(USER, THOUGHT, {**USER, "role": "assistant"}, USER), lambda s: "|Hm.\n" in s.prompt),
    ("instructions", ask(instructions="Be brief."), lambda s: "Be brief." in s.prompt),
    ("truncation", ask({**USER, "content": "a word " * 3000}, USER, truncation="auto"),
     lambda s: "Say hi." in s.prompt and "a word" not in s.prompt),
    ("tools", ask(tools=[LOOK]), lambda s: "Look at it" in s.prompt),
    ("tools.tools", ask(tools=[GROUP]), lambda s: "For seeing\\nLook at it" in s.prompt),
    ("tools.tools.name", ask(tools=[GROUP]), lambda s: '"name": "look"' in s.prompt),
    ("tools.tools.type", ask(tools=[GROUP]), lambda s: '"name": "look"' in s.prompt),
    ("tools.tools.description", ask(tools=[GROUP]), lambda s: "Look at it" in s.prompt),
    ("tools.tools.strict", ask(tools=[{**GROUP, "tools": [{**LOOK, "strict": True, "parameters": {"if": {}}}]}]),
     lambda s: s.refused),
    ("tools.tools.parameters", ask(tools=[GROUP]), lambda s: '{"at": {}}' in s.prompt),
    ("tools.type", ask(tools=[LOOK]), lambda s: '"name": "look"' in s.prompt),
    ("tools.name", ask(tools=[LOOK]), lambda s: '"name": "look"' in s.prompt),
    ("tools.description", ask(tools=[LOOK]), lambda s: "Look at it" in s.prompt),
    ("tools.strict", ask(tools=[{**LOOK, "strict": True, "parameters": {"if": {}}}]), lambda s: s.refused),
    ("tools.parameters", ask(tools=[LOOK]), lambda s: '{"at": {}}' in s.prompt),
    ("tool_choice", ask(tools=[LOOK], tool_choice="required"), lambda s: s.forced),
    ("tool_choice.type", ask(tools=[LOOK], tool_choice=NAMED), lambda s: s.forced),
    ("tool_choice.name", ask(tools=[LOOK], tool_choice=NAMED), lambda s: s.forced),
    ("tool_choice.mode", ask(tools=[LOOK, NOW], tool_choice=ALLOWED), lambda s: s.forced),
    ("tool_choice.tools", ask(tools=[LOOK, NOW], tool_choice=ALLOWED), lambda s: "now" not in s.prompt),
    ("tool_choice.tools.type", ask(tools=[LOOK, NOW], tool_choice=ALLOWED), lambda s: "now" not in s.prompt),
    ("tool_choice.tools.name", ask(tools=[LOOK, NOW], tool_choice=ALLOWED), lambda s: "now" not in s.prompt),
    ("max_output_tokens", ask(max_output_tokens=3), lambda s: s.body["usage"]["output_tokens"] == 3),
    ("top_logprobs", ask(top_logprobs=2, include=LOGPROBS), lambda s: len(rows(s)[0]["top_logprobs"]) == 2),
    ("include", ask(include=LOGPROBS), lambda s: len(rows(s)) > 5),
    ("metadata", ask(metadata={"a": "b"}), lambda s: s.body["metadata"] == {"a": "b"}),
    ("reasoning", ask(reasoning={"effort": "low"}), lambda s: "low True " in s.prompt),
    ("reasoning.effort", ask(reasoning={"effort": "low"}), lambda s: "low True " in s.prompt),
    ("text", ask(text={"format": FORM}), lambda s: s.params.grammar.bounds_numbers),
    ("text.format", ask(text={"format": FORM}), lambda s: s.params.grammar.bounds_numbers),
    *sampled(ask, ResponsesRequest),
]  # fmt: skip
COUNTED = [case for case in CASES if case[0].partition(".")[0] in InputTokensRequest.model_fields]
CALLER_CASES: list[Case] = [
    ("parallel_tool_calls", ask(tools=[LOOK], parallel_tool_calls=False), lambda s: calls(s) == 1),
]
KEPT = {"input.id", "input.namespace", "previous_response_id", "store"}
WITHOUT_EFFECT = {
    # No chat template knows it.
    "text.verbosity",
}


@each_of(CASES)
def test_field(probe: Probe, case: Case) -> None:
    probe.check(PATH, case)


@each_of(CALLER_CASES)
def test_field_of_an_answer_with_calls(caller: Probe, case: Case) -> None:
    caller.check(PATH, case)


@pytest.mark.parametrize("stream", [False, True])
def test_fields_of_what_is_kept(probe: Probe, stream: bool) -> None:
    """The fields in `KEPT`, which only later requests can tell of."""

    def kept(**fields: Any) -> str:
        items = {**USER, "content": "Remember.", "id": "msg_mine"}, {**CALL, "namespace": "eyes"}, OUTPUT
        seen = probe.post(PATH, ask(*items, stream=stream, **fields))
        response_id: str = seen.lines[-1]["response"]["id"] if stream else seen.body["id"]
        return response_id

    first = kept()
    assert "Remember." in probe.post(PATH, ask(previous_response_id=first)).prompt
    _, call, message = probe.get(f"{PATH}/{first}/input_items").json()["data"]
    assert (message["id"], call["namespace"]) == ("msg_mine", "eyes")
    assert probe.get(f"{PATH}/{kept(store=False)}").status_code == 404
    assert probe.get(f"{PATH}/{first}").status_code == 200


def test_every_field_has_a_case() -> None:
    has_all([*CASES, *CALLER_CASES], ResponsesRequest, WITHOUT_EFFECT | KEPT)
    has_all(COUNTED, InputTokensRequest, {"parallel_tool_calls", *(KEPT - {"store"})})


@each_of(COUNTED)
def test_count_is_of_the_same_prompt(probe: Probe, case: Case) -> None:
    _, body, _ = case
    asked = probe.post(PATH, body)
    body = {name: value for name, value in body.items() if name in InputTokensRequest.model_fields}
    counted = probe.post(f"{PATH}/input_tokens", body)
    if not asked.refused:
        assert counted.body["input_tokens"] == len(asked.ids)

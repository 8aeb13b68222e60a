"""Every field of Anthropic's requests changes something that a client, a template or the engine can see."""

from typing import Any

from field_cases import sampled
from field_probe import Case, Probe, Seen, each_of, has_all

from wllm_api.schemas.messages import CountTokensRequest, MessagesRequest

PATH = "/v1/messages"
USER = {"role": "user", "content": "Say hi."}
LOOK = {"name": "look", "description": "Look at it", "input_schema": {"type": "object", "properties": {"at": {}}}}
CALL = {"type": "tool_use", "id": "toolu_7", "name": "look", "input": {"at": "it"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_7", "content": "A cat", "is_error": True}
FORM = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"const": 1}}}}
THINK = {"type": "enabled", "budget_tokens": 777}


def ask(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 60, "temperature": 0, "messages": list(messages) or [USER], **fields}


def blocks(*content: dict[str, Any]) -> dict[str, Any]:
    """A conversation in which the assistant said this, and which goes on."""
    return ask(USER, {"role": "assistant", "content": list(content)}, USER)


def cleared(**edit: Any) -> dict[str, Any]:
    """A conversation with three thoughts, under one edit of its context."""
    turns = [
        turn for text in ("One.", "Two.", "Three.")
        for turn in (USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": text}]})
    ]  # fmt: skip
    edits = [{"type": "clear_thinking_20251015", **edit}]
    return ask(*turns, USER, context_management={"edits": edits})


def thoughts(seen: Seen) -> list[bool]:
    """Which of them the model is shown."""
    return [f"|{text}\n" in seen.prompt for text in ("One.", "Two.", "Three.")]


SHARED: list[Case] = [
    ("model", ask(model="org/other-name"), lambda s: s.body["model"] == "org/other-name"),
    ("messages", ask(USER), lambda s: "Say hi." in s.prompt),
    ("messages.role", ask(USER), lambda s: "user|" in s.prompt),
    ("messages.content", ask(USER), lambda s: "Say hi." in s.prompt),
    ("messages.content.type", blocks({"type": "text", "text": "Hello."}), lambda s: "Hello." in s.prompt),
    ("messages.content.text", blocks({"type": "text", "text": "Hello."}), lambda s: "Hello." in s.prompt),
    ("messages.content.thinking", blocks({"type": "thinking", "thinking": "Hm."}), lambda s: "|Hm.\n" in s.prompt),
    ("messages.content.id", blocks(CALL), lambda s: "<tool_call>toolu_7 " in s.prompt),
    ("messages.content.name", blocks(CALL), lambda s: '"name": "look"' in s.prompt),
    ("messages.content.input", blocks(CALL), lambda s: '{"at": "it"}' in s.prompt),
    ("messages.content.tool_use_id", ask({"role": "user", "content": [RESULT]}), lambda s: "|toolu_7|" in s.prompt),
    ("messages.content.content", ask({"role": "user", "content": [RESULT]}), lambda s: "A cat" in s.prompt),
    ("messages.content.is_error", ask({"role": "user", "content": [RESULT]}), lambda s: "Error: A cat" in s.prompt),
    ("system", ask(system="Be brief."), lambda s: "Be brief." in s.prompt),
    ("tools", ask(tools=[LOOK]), lambda s: "Look at it" in s.prompt),
    ("tools.name", ask(tools=[LOOK]), lambda s: '"name": "look"' in s.prompt),
    ("tools.description", ask(tools=[LOOK]), lambda s: "Look at it" in s.prompt),
    ("tools.input_schema", ask(tools=[LOOK]), lambda s: '{"at": {}}' in s.prompt),
    ("tool_choice", ask(tools=[LOOK], tool_choice={"type": "any"}), lambda s: s.forced),
    ("tool_choice.type", ask(tools=[LOOK], tool_choice={"type": "any"}), lambda s: s.forced),
    ("tool_choice.name", ask(tools=[LOOK], tool_choice={"type": "tool", "name": "look"}), lambda s: s.forced),
    ("thinking", ask(thinking=THINK), lambda s: " True 777 " in s.prompt),
    ("thinking.type", ask(thinking=THINK), lambda s: " True 777 " in s.prompt),
    ("thinking.budget_tokens", ask(thinking=THINK), lambda s: " True 777 " in s.prompt),
    ("context_management", cleared(), lambda s: thoughts(s) == [False, False, True]),
    ("context_management.edits", cleared(), lambda s: thoughts(s) == [False, False, True]),
    ("context_management.edits.type", cleared(), lambda s: thoughts(s) == [False, False, True]),
    ("context_management.edits.keep", cleared(keep="all"), lambda s: thoughts(s) == [True, True, True]),
    ("context_management.edits.keep.type", cleared(keep={"type": "all"}), lambda s: thoughts(s) == [True, True, True]),
    ("context_management.edits.keep.value", cleared(keep={"type": "thinking_turns", "value": 2}),
     lambda s: thoughts(s) == [False, True, True]),
    ("output_config", ask(output_config={"effort": "low"}), lambda s: "low False " in s.prompt),
    ("output_config.effort", ask(output_config={"effort": "low"}), lambda s: "low False " in s.prompt),
    ("output_config.format", ask(output_config={"format": FORM}), lambda s: s.params.grammar.bounds_numbers),
]  # fmt: skip
CASES: list[Case] = [
    ("tools.strict", ask(tools=[{**LOOK, "strict": True, "input_schema": {"if": {}}}]), lambda s: s.refused),
    ("max_tokens", ask(max_tokens=3), lambda s: s.body["usage"]["output_tokens"] == 3),
    ("stop_sequences", ask(stop_sequences=[" tokens"]), lambda s: s.body["stop_sequence"] == " tokens"),
    *sampled(ask, MessagesRequest),
]
CALLER_CASES: list[Case] = [
    ("tool_choice.disable_parallel_tool_use",
     ask(max_tokens=300, tools=[LOOK], tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
     lambda s: [block["type"] for block in s.body["content"]].count("tool_use") == 1),
    ("thinking.display", ask(max_tokens=300, thinking={"type": "enabled", "display": "omitted"}),
     lambda s: "thinking" not in [block["type"] for block in s.body["content"]]),
]  # fmt: skip
# There is one value.
WITHOUT_EFFECT = {"tools.type"}


@each_of([*SHARED, *CASES])
def test_field(probe: Probe, case: Case) -> None:
    probe.check(PATH, case)


@each_of(CALLER_CASES)
def test_field_of_an_answer_with_calls(caller: Probe, case: Case) -> None:
    caller.check(PATH, case)


def test_every_field_has_a_case() -> None:
    has_all([*SHARED, *CASES, *CALLER_CASES], MessagesRequest, WITHOUT_EFFECT)
    # Calls are of no interest where there is no answer.
    has_all([*SHARED, *CALLER_CASES], CountTokensRequest, WITHOUT_EFFECT | {"tools.strict"})


@each_of(SHARED)
def test_count_is_of_the_same_prompt(probe: Probe, case: Case) -> None:
    _, body, _ = case
    counted = {name: value for name, value in body.items() if name not in ("max_tokens", "temperature")}
    count = probe.post(f"{PATH}/count_tokens", counted).body["input_tokens"]
    assert count == len(probe.post(PATH, body).ids)

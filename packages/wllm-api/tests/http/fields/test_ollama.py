"""Every field of Ollama's requests changes something that a client, a template or the engine can see."""

from typing import Any

from field_probe import Case, Probe, each_of, has_all

from wllm_api.schemas.ollama import OllamaChatRequest, OllamaGenerateRequest

CHAT, GENERATE = "/api/chat", "/api/generate"
USER = {"role": "user", "content": "Say hi."}
LOOK = {"name": "look", "description": "Look at it", "parameters": {"type": "object", "properties": {"at": {}}}}
TOOL = {"type": "function", "function": LOOK}
CALL = {"id": "call_7", "function": {"name": "look", "arguments": {"at": "it"}}}
RESULT = {"role": "tool", "content": "A cat", "tool_name": "look", "tool_call_id": "call_7"}


def chat(*messages: dict[str, Any], options: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    options = {"temperature": 0, **(options or {})}
    return {"model": "scripted", "stream": False, "messages": list(messages) or [USER], "options": options, **fields}


def ask(*, options: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    options = {"temperature": 0, **(options or {})}
    return {"model": "scripted", "stream": False, "prompt": "Say hi.", "options": options, **fields}


SHARED: list[Case] = [
    ("model", {"model": "org/other-name"}, lambda s: s.body["model"] == "org/other-name"),
    ("stream", {"stream": False}, lambda s: not s.streams),
    ("format", {"format": "json"}, lambda s: s.forced),
    ("think", {"think": "low"}, lambda s: "low True " in s.prompt),
    ("logprobs", {"logprobs": True}, lambda s: s.body["logprobs"]),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 2}, lambda s: len(s.body["logprobs"][0]["top_logprobs"]) == 2),
    ("options", {"options": {"top_k": 7}}, lambda s: s.params.top_k == 7),
    ("options.temperature", {"options": {"temperature": 0.25}}, lambda s: s.params.temperature == 0.25),
    ("options.top_k", {"options": {"top_k": 7}}, lambda s: s.params.top_k == 7),
    ("options.top_p", {"options": {"top_p": 0.5}}, lambda s: s.params.top_p == 0.5),
    ("options.min_p", {"options": {"min_p": 0.125}}, lambda s: s.params.min_p == 0.125),
    ("options.repeat_penalty", {"options": {"repeat_penalty": 1.5}}, lambda s: s.params.repetition_penalty == 1.5),
    ("options.repeat_last_n", {"options": {"repeat_penalty": 1.5, "repeat_last_n": 0}},
     lambda s: s.params.repetition_penalty == 1),
    ("options.presence_penalty", {"options": {"presence_penalty": -1}}, lambda s: s.params.presence_penalty == -1),
    ("options.frequency_penalty", {"options": {"frequency_penalty": 2}}, lambda s: s.params.frequency_penalty == 2),
    ("options.seed", {"options": {"seed": 5}}, lambda s: s.params.seed == 5),
    ("options.stop", {"options": {"temperature": 0, "stop": [" tokens"]}}, lambda s: s.params.stop == (" tokens",)),
    ("options.num_predict", {"options": {"num_predict": 3}}, lambda s: s.body["eval_count"] == 3),
    ("options.num_ctx", {"options": {"num_ctx": 10**6}}, lambda s: s.refused),
]  # fmt: skip
CHAT_CASES: list[Case] = [
    ("messages", chat(), lambda s: "Say hi." in s.prompt),
    ("messages.role", chat(), lambda s: "user|" in s.prompt),
    ("messages.content", chat(), lambda s: "Say hi." in s.prompt),
    ("messages.thinking", chat(USER, {"role": "assistant", "thinking": "Hm."}, USER), lambda s: "|Hm.\n" in s.prompt),
    *((f"messages.tool_calls{inside}", chat(USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT),
       lambda s: '<tool_call>call_7 {"name": "look", "arguments": {"at": "it"}}' in s.prompt)
      for inside in ("", ".id", ".function", ".function.name", ".function.arguments")),
    ("messages.tool_name", chat(USER, RESULT), lambda s: "tool|look|" in s.prompt),
    ("messages.tool_call_id", chat(USER, RESULT), lambda s: "|call_7|" in s.prompt),
    ("tools", chat(tools=[TOOL]), lambda s: "Look at it" in s.prompt),
    ("tools.function", chat(tools=[TOOL]), lambda s: "Look at it" in s.prompt),
    ("tools.function.name", chat(tools=[TOOL]), lambda s: '"name": "look"' in s.prompt),
    ("tools.function.description", chat(tools=[TOOL]), lambda s: "Look at it" in s.prompt),
    ("tools.function.parameters", chat(tools=[TOOL]), lambda s: '{"at": {}}' in s.prompt),
    ("tools.function.strict", chat(tools=[{"function": {**LOOK, "strict": True, "parameters": {"if": {}}}}]),
     lambda s: s.refused),
    ("truncate", chat({**USER, "content": "a word " * 3000}, USER, truncate=True),
     lambda s: "Say hi." in s.prompt and "a word" not in s.prompt),
]  # fmt: skip
GENERATE_CASES: list[Case] = [
    ("prompt", ask(), lambda s: "Say hi." in s.prompt),
    ("suffix", ask(suffix=" there"), lambda s: s.prompt.endswith("<fim_suffix> there<fim_middle>")),
    ("system", ask(system="Be brief."), lambda s: "Be brief." in s.prompt),
    ("raw", ask(raw=True), lambda s: s.prompt.endswith("Say hi.")),
]
# The model stays as long as this server; tests/hosting has one that unloads models.
WITHOUT_EFFECT = {"keep_alive"}
# There is one value.
ONE_VALUE = {"tools.type"}

ALL_CHAT = [*((field, chat() | fields, check) for field, fields, check in SHARED), *CHAT_CASES]
ALL_GENERATE = [*((field, ask() | fields, check) for field, fields, check in SHARED), *GENERATE_CASES]


@each_of(ALL_CHAT)
def test_field_of_chat(probe: Probe, case: Case) -> None:
    probe.check(CHAT, case)


@each_of(ALL_GENERATE)
def test_field_of_generate(probe: Probe, case: Case) -> None:
    probe.check(GENERATE, case)


def test_every_field_has_a_case() -> None:
    has_all(ALL_CHAT, OllamaChatRequest, WITHOUT_EFFECT | ONE_VALUE)
    has_all(ALL_GENERATE, OllamaGenerateRequest, WITHOUT_EFFECT)

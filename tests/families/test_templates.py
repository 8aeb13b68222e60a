"""Public chat templates: the prompts of transformers, and calls that come back as they went in."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from families.conftest import templates, variables
from transformers.utils import chat_template_utils

from wllm_api.engine.scripted_model import build_tokenizer, describe
from wllm_api.errors import TemplateError
from wllm_api.messages import chat_prompt
from wllm_api.model import ServedModel
from wllm_api.schemas.chat import ChatMessage
from wllm_api.text import ChatTemplate

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "größe <b>",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "where"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
ARGUMENTS = {"city": "Zürich <b>", "days": 3}
CALL = [{"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {"role": "user", "content": "Hi <b> ü"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Who?\n"},
    ],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "call": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": CALL},
        {"role": "tool", "content": "22 C", "tool_call_id": "abcdefghi", "name": "get_weather"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n22."},
        {"role": "user", "content": "Thanks"},
    ],
    "reasoning": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "user", "content": "c"},
    ],
    "order": [{"role": "assistant", "content": "a"}, {"role": "system", "content": "b"}],
}
EXTRA: list[dict[str, Any]] = [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"reasoning_effort": "high"}]


def test_there_are_templates() -> None:
    assert len(templates()) > 20


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["free", "tools"])
def test_prompts_are_those_of_transformers(conversation: str, tools: Any) -> None:
    messages = CONVERSATIONS[conversation]
    rendered = 0
    for name, source in templates().items():
        for extra in EXTRA:
            try:
                ours: object = ChatTemplate(source, variables()).render(messages, tools=tools, extra=extra)
            except TemplateError:
                ours = TemplateError
            try:
                theirs: object = chat_template_utils.render_jinja_template(
                    [chat_template_utils._normalize_chat_messages(messages)],
                    tools,
                    chat_template=source,
                    add_generation_prompt=True,
                    **variables(),
                    **extra,
                )[0][0]
            except Exception:  # whatever jinja raises
                theirs = TemplateError
            assert ours == theirs, (name, extra)
            rendered += ours is not TemplateError
    assert rendered > 20 or conversation == "order"


@pytest.mark.parametrize("variable", ["enable_thinking", "reasoning_effort"])
def test_thinking_reaches_the_templates_that_know_it(variable: str) -> None:
    values: tuple[Any, Any] = (True, False) if variable == "enable_thinking" else ("low", "high")
    known = [source for source in templates().values() if variable in source]
    changed = [
        source
        for source in known
        if len(
            {ChatTemplate(source, variables()).render(CONVERSATIONS["system"], extra={variable: one}) for one in values}
        )
        == 2
    ]
    assert changed


def shown_by(model: ServedModel, messages: list[dict[str, Any]], *, to_answer: bool) -> str:
    """The prompt that the server makes of OpenAI's messages."""
    return asyncio.run(
        chat_prompt(
            [ChatMessage.model_validate(message) for message in messages],
            model,
            add_generation_prompt=to_answer,
            continue_final_message=False,
            extra={},
            tools=TOOLS,
        )
    )


def test_calls_come_back_from_what_a_template_shows() -> None:
    """What a template writes for a call that was made is read as that call: this is what the model learned to write."""
    user = CONVERSATIONS["call"][0]
    function = {"name": "get_weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
    call = {"role": "assistant", "content": None, "tool_calls": [{**CALL[0], "function": function}]}
    schemas = {"get_weather": TOOLS[0]["function"]["parameters"]}
    seen = set()
    for name, source in templates().items():
        if "tool_calls" not in source:
            continue
        model = ServedModel(describe(build_tokenizer(), max_model_len=999, num_blocks=9, chat_template=source))
        before = shown_by(model, [user], to_answer=True)
        shown = shown_by(model, [user, call], to_answer=False)
        same = next(at for at in range(len(shown)) if shown[: at + 1] != before[: at + 1])
        begun = shown.rfind("<", 0, same)
        answer = shown[begun if begun >= 0 and ">" not in shown[begun:same] else same :]
        special = frozenset(model.format.marks(with_tools=True)) | {"<|im_end|>"}
        parser = model.format.parser("", tools=schemas, special=special)()
        pieces = parser.push(answer) + parser.finish(cut=False)
        assert [piece.text for piece in pieces if piece.kind == "call"] == ["get_weather"], (name, answer)
        arguments = "".join(piece.text for piece in pieces if piece.kind == "arguments")
        assert json.loads(arguments) == ARGUMENTS, (name, answer)
        seen.add(model.format.tools)
    assert seen >= {"hermes", "gemma4", "harmony", "deepseek", "llama3"}, seen

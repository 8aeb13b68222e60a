"""From a request's messages to what a chat template takes.

Owns three repairs: tool calls and results as text for templates without tools, `developer` as `system`, and system
messages merged into the first one for templates that refuse them anywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from wllm_api.http_errors import InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.schemas.chat import ChatMessage, ToolCall

TemplateMessage = dict[str, object]


async def chat_prompt(
    messages: Sequence[ChatMessage],
    model: ServedModel,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    extra: Mapping[str, object],
    tools: Sequence[Mapping[str, object]] | None = None,
) -> str:
    """The prompt text; raises `InvalidRequest` when the template refuses the conversation."""

    async def render(plain: Sequence[TemplateMessage]) -> str:
        return await model.render(
            plain,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
            extra=extra,
            tools=tools,
        )

    try:
        plain = [_plain(message, knows_tools=model.knows_tools) for message in messages]
    except RecursionError:
        raise InvalidRequest(
            "The arguments of a tool call are nested too deeply. Send flatter JSON.", param="messages"
        ) from None
    try:
        return await render(plain)
    except InvalidRequest:
        merged = _system_first(plain)
        if merged == plain:
            raise
        # The first refusal is the honest one: should the repaired conversation fail too, tell that.
        try:
            return await render(merged)
        except InvalidRequest:
            pass
        raise


def _plain(message: ChatMessage, *, knows_tools: bool) -> TemplateMessage:
    role = "system" if message.role == "developer" else message.role
    content = message.content if message.content is not None else message.refusal or ""
    plain: TemplateMessage = {"role": role, "content": content}
    if message.name is not None:
        plain["name"] = message.name
    if (reasoning := message.reasoning_content or message.reasoning) is not None:
        plain["reasoning_content"] = reasoning
    if knows_tools:
        if message.tool_calls:
            plain["tool_calls"] = [_template_call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            plain["tool_call_id"] = message.tool_call_id
    elif message.tool_calls:
        plain["content"] = "\n".join(filter(None, [content, *map(_call_text, message.tool_calls)]))
    elif role in ("tool", "function"):
        plain["role"] = "user"
        plain["content"] = f"<tool_response>\n{content}\n</tool_response>"
    return plain


def _arguments(call: ToolCall) -> object:
    # Templates write arguments with `tojson`, so text that is JSON must reach them as what it stands for.
    try:
        return json.loads(call.function.arguments or "{}")
    except ValueError:
        return call.function.arguments


def _template_call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": _arguments(call)}
    return {"id": call.id, "type": "function", "function": function}


def _call_text(call: ToolCall) -> str:
    text = json.dumps({"name": call.function.name, "arguments": _arguments(call)}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def _system_first(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    system = [str(message["content"]) for message in messages if message["role"] == "system"]
    if not system:
        return messages
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(system)}, *rest]

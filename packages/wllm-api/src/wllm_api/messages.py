"""From a request's messages to what a chat template takes.

Owns five repairs: tools, their calls and results as text for templates without tools, `developer` as `system`, system
messages merged into the first one for templates that refuse them anywhere else, and for messages with calls a content
of null and arguments as text, where a template wants them so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from wllm_api.http_errors import InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.schemas.chat import ChatMessage, ToolCall
from wllm_api.text.limits import MAX_SIZE
from wllm_api.threads import in_thread

TemplateMessage = dict[str, object]

# Older spellings to what templates know.
_ROLES = {"developer": "system", "function": "tool"}
# For templates that show no tools. Calls are written as `_call_text` does, and read by the parser `hermes`.
_OFFER = """You can call these functions, each described by a JSON schema:
<tools>
{tools}
</tools>
When one of them helps, answer with a call in this form and nothing after it:
<tool_call>
{{"name": "the function", "arguments": {{"a parameter": "its value"}}}}
</tool_call>"""


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
            tools=tools if model.shows_tools else None,
        )

    _refuse_large(messages)
    try:
        plain = await in_thread(False, lambda: [_plain(message, knows_tools=model.knows_tools) for message in messages])
    except RecursionError:
        raise InvalidRequest(
            "The arguments of a tool call are nested too deeply. Send flatter JSON.", param="messages"
        ) from None
    offer = _offer_text(tools) if tools and not model.shows_tools else None
    ways = _ways_to_say(plain, offer)
    honest, tries = ways[0], ways
    if _has_calls(plain):
        if model.asks_for_null:
            tries = [*map(_with_null_content, ways), *ways]
        tries = [version for way in tries for version in (way, _with_text_arguments(way))]
    refusal: InvalidRequest | None = None
    for way in tries:
        try:
            return await render(way)
        except InvalidRequest as error:
            # Should all repaired conversations fail too, tell what was wrong with the first.
            refusal = error if way is honest or refusal is None else refusal
    assert refusal is not None, "there is at least one way to say it"
    raise refusal


def _refuse_large(messages: Sequence[ChatMessage]) -> None:
    # A template could not write them; to see it on the way would take long.
    arguments = (call.function.arguments for message in messages for call in message.tool_calls or ())
    size = sum(len(message.content or "") for message in messages) + sum(map(len, arguments))
    if size > MAX_SIZE:
        raise InvalidRequest(
            f"The messages have {size:,} characters; the limit is {MAX_SIZE:,}. Send a shorter conversation.",
            param="messages",
        )


def _ways_to_say(messages: list[TemplateMessage], offer: str | None) -> list[list[TemplateMessage]]:
    """The conversation as it is, then repaired for templates that are choosy about system messages."""
    if offer is None:
        ways = [messages, _system_first(messages)]
    elif messages[0]["role"] == "system":
        told = [{**messages[0], "content": f"{messages[0]['content']}\n\n{offer}"}, *messages[1:]]
        ways = [told, _system_first(told)]
    else:
        told = [{"role": "system", "content": offer}, *messages]
        within = [{**messages[0], "content": f"{offer}\n\n{messages[0]['content']}"}, *messages[1:]]
        ways = [told, _system_first(told), within]
    return [way for number, way in enumerate(ways) if way not in ways[:number]]


def _has_calls(messages: list[TemplateMessage]) -> bool:
    return any("tool_calls" in message for message in messages)


def _with_null_content(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    # Some templates show the calls of a message only when its content is null.
    return [
        {**message, "content": None} if message.get("tool_calls") and not message["content"] else message
        for message in messages
    ]


def _with_text_arguments(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    # Some templates join arguments to their own text, and take no object.
    return [
        {**message, "tool_calls": [_with_text(call) for call in calls]}
        if isinstance(calls := message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def _with_text(call: Mapping[str, object]) -> dict[str, object]:
    function = call["function"]
    assert isinstance(function, dict), "calls are written by `_template_call`"
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _offer_text(tools: Sequence[Mapping[str, object]]) -> str:
    try:
        return _OFFER.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    except RecursionError:
        raise InvalidRequest("The 'tools' are nested too deeply. Send flatter ones.", param="tools") from None


def _plain(message: ChatMessage, *, knows_tools: bool) -> TemplateMessage:
    role = _ROLES.get(message.role, message.role)
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
    elif role == "tool":
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

"""Which tools a chat request really offers to the model."""

from __future__ import annotations

from wllm_api.http_errors import InvalidRequest, Unsupported
from wllm_api.model import ServedModel
from wllm_api.schemas.chat import ChatRequest
from wllm_api.schemas.tools import AllowedTools, NamedTool, Tool


def offered_tools(body: ChatRequest, model: ServedModel) -> list[Tool]:
    """The tools to show to the model, none when it may not call any; raises `InvalidRequest`."""
    choice = body.tool_choice or "auto"
    if not body.tools:
        if choice not in ("none", "auto"):
            raise InvalidRequest("'tool_choice' asks for a tool call, but 'tools' is empty.", param="tool_choice")
        return []
    if choice == "none":
        return []
    wanted = _wanted(choice)
    known = {tool.function.name for tool in body.tools}
    if wanted is not None and (missing := sorted(wanted - known)):
        raise InvalidRequest(
            f"'tool_choice' names '{missing[0]}', which is not among the 'tools'. Offer it, or choose another.",
            param="tool_choice",
        )
    if choice == "required" or isinstance(choice, NamedTool) or _requires(choice):
        raise Unsupported(
            "'tool_choice' forces a call, which needs structured output, and this server does not support that yet. "
            "Use 'auto'.",
            param="tool_choice",
        )
    if model.format.tools is None:
        raise Unsupported(
            "'tools' cannot be used: how this model writes tool calls is not known from its chat template. Leave them "
            "out, send 'tool_choice': 'none', or start the server with --tool-parser.",
            param="tools",
        )
    if not model.shows_tools:
        raise Unsupported("'tools' cannot be used: this model's chat template does not show any.", param="tools")
    return [tool for tool in body.tools if wanted is None or tool.function.name in wanted]


def _wanted(choice: object) -> set[str] | None:
    if isinstance(choice, NamedTool):
        return {choice.function.name}
    if isinstance(choice, AllowedTools):
        return {tool.function.name for tool in choice.allowed_tools.tools}
    return None


def _requires(choice: object) -> bool:
    return isinstance(choice, AllowedTools) and choice.allowed_tools.mode == "required"

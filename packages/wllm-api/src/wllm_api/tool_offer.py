"""Which tools a request of any API really offers to the model, and what it forces the answer to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from wllm_api.grammars import Constraint
from wllm_api.http_errors import InvalidRequest, Unsupported
from wllm_api.model import ServedModel
from wllm_api.schemas.tools import AllowedTools, NamedTool, Tool, ToolUse
from wllm_api.tools import TOLD_IN_WORDS, Tools, arguments_schema, calls_schema, one_call, some_calls
from wllm_api.tools.parser import Script

# OpenAI's reading of a function without `parameters`.
_NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}
_OTHER_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "string"})


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools to show to the model, none when it may not call any.

    `named` is the one function that must be called; `required`: any must be. `places` has the field of the request that
    holds the schema of each tool.
    """

    tools: tuple[Tool, ...] = ()
    named: str | None = None
    required: bool = False
    parallel: bool = True
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def schemas(self) -> Tools:
        """The parameters of each function."""
        return {
            tool.name: _NO_PARAMETERS if tool.function.parameters is None else tool.function.parameters
            for tool in self.tools
        }

    @property
    def constraint(self) -> Constraint | None:
        """The form that the whole answer must have, None when no call is forced; raises `InvalidRequest`."""
        if self.named is not None:
            return Constraint("json", arguments_schema(self.schemas[self.named]), "tool_choice")
        if self.required:
            try:
                schema = calls_schema(self.schemas, max_calls=None if self.parallel else 1)
            except RecursionError:
                raise InvalidRequest("The 'tools' are nested too deeply. Send flatter ones.", param="tools") from None
            return Constraint("json", schema, "tool_choice")
        return None

    @property
    def script(self) -> Script | None:
        """What reads an answer of that form."""
        if self.named is not None:
            return one_call(self.named)
        return some_calls if self.required else None


def tool_offer(use: ToolUse, model: ServedModel) -> ToolOffer:
    """What the request offers and forces; raises `InvalidRequest`."""
    choice = use.choice or "auto"
    if not use.tools:
        if choice not in ("none", "auto"):
            raise InvalidRequest("'tool_choice' asks for a tool call, but 'tools' is empty.", param="tool_choice")
        return ToolOffer()
    if choice == "none":
        return ToolOffer()
    wanted = _wanted(choice)
    known = {tool.name for tool in use.tools}
    if wanted is not None and (missing := sorted(wanted - known)):
        raise InvalidRequest(
            f"'tool_choice' names '{missing[0]}', which is not among the 'tools'. Offer it, or choose another.",
            param="tool_choice",
        )
    named = choice.function.name if isinstance(choice, NamedTool) else None
    required = choice == "required" or _requires(choice)
    if named is None and not required:
        _check_format(model)
    _check_types(use)
    tools = tuple(tool for tool in use.tools if named or wanted is None or tool.name in wanted)
    return ToolOffer(tools, named, required, use.parallel, use.places)


def can_call(model: ServedModel) -> bool:
    """Whether tools can be offered to the model: it is shown them, and it is known how it writes calls."""
    return model.format.tools is not None and (model.shows_tools or model.format.tools == TOLD_IN_WORDS)


def _check_format(model: ServedModel) -> None:
    if model.format.tools is None:
        raise Unsupported(
            "'tools' cannot be used: how this model writes tool calls is not known from its chat template. Leave them "
            "out, force a call by 'tool_choice', or start the server with --tool-parser.",
            param="tools",
        )
    if not can_call(model):
        raise Unsupported(
            "'tools' cannot be used: this model's chat template does not show any, and it is not told in words how to "
            f"write calls for the parser '{model.format.tools}'. Start the server with --tool-parser {TOLD_IN_WORDS}.",
            param="tools",
        )


def _check_types(use: ToolUse) -> None:
    # Of a schema that cannot be read as one, no more is asked than that it says something else.
    for tool in use.tools:
        kind = (tool.function.parameters or {}).get("type")
        types = kind if isinstance(kind, list) else [kind]
        if "object" not in types and any(one in _OTHER_TYPES for one in types if isinstance(one, str)):
            place = use.places[tool.name]
            raise InvalidRequest(
                f"'{place}' has the type {json.dumps(kind)[:80]}, but arguments are an object. Make it 'object'.",
                param=place,
            )


def _wanted(choice: object) -> set[str] | None:
    if isinstance(choice, NamedTool):
        return {choice.function.name}
    if isinstance(choice, AllowedTools):
        return {tool.function.name for tool in choice.allowed_tools.tools}
    return None


def _requires(choice: object) -> bool:
    return isinstance(choice, AllowedTools) and choice.allowed_tools.mode == "required"

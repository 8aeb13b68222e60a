"""The tools of /v1/responses, which are flatter than those of chat, and what they mean there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictStr

from wllm_api.schemas.base import Flag, Part
from wllm_api.schemas.tools import (
    MAX_TOOLS,
    AllowedNames,
    AllowedTools,
    FunctionType,
    LongName,
    Tool,
    ToolChoice,
    known_choice,
    tool_named,
    tool_of,
)


class ResponseTool(Part):
    """A function of the client; `parameters` is a JSON schema."""

    type: FunctionType
    """Always a function."""
    name: LongName
    """What calls name."""
    description: StrictStr | None = None
    """What it is for, told to the model."""
    parameters: dict[str, Any] | None = None
    """The JSON schema of its arguments."""
    strict: Flag = False
    """Refuse the request if a call cannot be held to the schema; without it such a call is any JSON object."""

    def plain(self) -> Tool:
        """The same as chat writes it."""
        return tool_of(self.name, self.description, self.parameters, strict=self.strict)


class NamedFunction(Part):
    """A reference to one of the tools."""

    type: Literal["function"]
    """Always a function."""
    name: LongName
    """Its name."""


class AllowedFunctions(Part):
    """Some of the tools; `mode` says whether one of them has to be called."""

    type: Literal["allowed_tools"]
    """Some of the tools."""
    mode: Literal["auto", "required"] = "auto"
    """`required`: one of them has to be called."""
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=MAX_TOOLS)]
    """Those that may be called; the model is shown no others."""


ResponseChoice = Annotated[
    Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions,
    BeforeValidator(known_choice),
]


def plain_choice(choice: ResponseChoice) -> ToolChoice:
    """The same as chat writes it."""
    if isinstance(choice, NamedFunction):
        return tool_named(choice.name)
    if isinstance(choice, AllowedFunctions):
        names = AllowedNames.model_construct(mode=choice.mode, tools=[tool_named(one.name) for one in choice.tools])
        return AllowedTools.model_construct(type="allowed_tools", allowed_tools=names)
    return choice

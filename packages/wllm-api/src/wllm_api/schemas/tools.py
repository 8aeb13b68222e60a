"""The tools that a request offers, and which of them it wants used."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictStr

from wllm_api.schemas.base import Flag, Part

MAX_TOOLS = 128


def _a_function(kind: object) -> object:
    if kind != "function":
        raise ValueError(f"is {kind!r:.80}, but only tools of the type 'function' can be used")
    return kind


def _a_choice(choice: object) -> object:
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise ValueError(f"is {choice!r:.80}; use 'none', 'auto', 'required', or an object that names a function")
    if isinstance(choice, dict) and choice.get("type") not in ("function", "allowed_tools"):
        raise ValueError(f"has the type {choice.get('type')!r:.80}; use 'function' or 'allowed_tools'")
    return choice


FunctionType = Annotated[Literal["function"], BeforeValidator(_a_function)]


class FunctionName(Part):
    """The name of a function."""

    name: Annotated[StrictStr, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Function(FunctionName):
    """A function that the model may call; `parameters` is a JSON schema."""

    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: Flag = False


class Tool(Part):
    """A tool of OpenAI's API."""

    type: FunctionType = "function"
    function: Function

    def for_template(self) -> dict[str, object]:
        """The tool as chat templates show it."""
        function: dict[str, object] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        if self.function.parameters is not None:
            function["parameters"] = self.function.parameters
        return {"type": "function", "function": function}


class NamedTool(Part):
    """A reference to one of the tools."""

    type: Literal["function"]
    function: FunctionName


class AllowedNames(Part):
    """Some of the tools; `mode` says whether one of them has to be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(Part):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | AllowedTools,
    BeforeValidator(_a_choice),
]

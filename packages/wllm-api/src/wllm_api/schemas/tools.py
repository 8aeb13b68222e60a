"""The tools that a request offers, and which of them it wants used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StrictStr

from wllm_api.schemas.base import Flag, Part

MAX_TOOLS = 128


def _a_function(kind: object) -> object:
    if kind != "function":
        raise ValueError(f"is {kind!r:.80}, but only tools of the type 'function' can be used")
    return kind


def known_choice(choice: object) -> object:
    """The choice, if its word or its type is known; raises `ValueError`."""
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise ValueError(f"is {choice!r:.80}; use 'none', 'auto', 'required', or an object that names a function")
    if isinstance(choice, dict) and choice.get("type") not in ("function", "allowed_tools"):
        raise ValueError(f"has the type {choice.get('type')!r:.80}; use 'function' or 'allowed_tools'")
    return choice


FunctionType = Annotated[Literal["function"], BeforeValidator(_a_function)]


class FunctionName(Part):
    """The name of a function."""

    name: Annotated[StrictStr, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    """Up to 64 letters, digits, `_` and `-`."""


class Function(FunctionName):
    """A function that the model may call."""

    description: StrictStr | None = None
    """What the function is for, in words for the model."""
    parameters: dict[str, Any] | None = None
    """The JSON schema of its arguments; absent: it takes none."""
    strict: Flag = False
    """Refuse the request if a call cannot be held to the schema; without it such a call is any JSON object."""


class Tool(Part):
    """A tool of OpenAI's API."""

    type: FunctionType = "function"
    """There is no other kind."""
    function: Function
    """The function."""

    @property
    def name(self) -> str:
        """What calls name."""
        return self.function.name

    def for_template(self) -> dict[str, object]:
        """The tool as chat templates show it."""
        function: dict[str, object] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        if self.function.parameters is not None:
            function["parameters"] = self.function.parameters
        return {"type": "function", "function": function}


class HasName(Protocol):
    """What calls name."""

    @property
    def name(self) -> str:
        """Unlike that of any other tool of the request."""


AnyNamed = TypeVar("AnyNamed", bound=HasName)


def told_apart(tools: list[AnyNamed]) -> list[AnyNamed]:
    """The tools, if each has a name of its own; raises `ValueError` (pydantic)."""
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise ValueError(f"two of them are called '{tool.name}', so that no call could tell them apart. Rename one")
        seen.add(tool.name)
    return tools


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS), AfterValidator(told_apart)]


class NamedTool(Part):
    """A reference to one of the tools."""

    type: Literal["function"]
    """Says that this names a function."""
    function: FunctionName
    """The function."""


class AllowedNames(Part):
    """Some of the tools."""

    mode: Literal["auto", "required"] = "auto"
    """Whether one of them has to be called."""
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]
    """Their names."""


class AllowedTools(Part):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    """Says that this names some of the tools."""
    allowed_tools: AllowedNames
    """The tools and how they may be used."""


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | AllowedTools,
    BeforeValidator(known_choice),
]
FunctionChoice = Literal["none", "auto"] | FunctionName


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request of any API says of tools, in OpenAI's words; `parallel`: an answer may have several calls.

    `fields` are where the request has the schemas of the tools, where that is not as in chat.
    """

    tools: Sequence[Tool] = ()
    choice: ToolChoice | None = None
    parallel: bool = True
    fields: Sequence[str] = ()

    @property
    def places(self) -> dict[str, str]:
        """The field of each tool's schema, by the name of the tool."""
        fields = self.fields or [f"tools[{number}].function.parameters" for number in range(len(self.tools))]
        return {tool.name: field for tool, field in zip(self.tools, fields, strict=True)}


# The newer APIs take longer names than chat does.
LongName = Annotated[StrictStr, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]


def tool_of(name: str, description: str | None, parameters: Mapping[str, object] | None, *, strict: bool) -> Tool:
    """A tool whose parts another schema has checked."""
    function = Function.model_construct(
        name=name, description=description, parameters=None if parameters is None else dict(parameters), strict=strict
    )
    return Tool.model_construct(type="function", function=function)


def tool_named(name: str) -> NamedTool:
    """A reference by a name that another schema has checked."""
    return NamedTool.model_construct(type="function", function=FunctionName.model_construct(name=name))

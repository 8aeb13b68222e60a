"""The tools of /v1/responses, which are flatter than those of chat, and what they mean there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Discriminator, Field, StrictStr

from wllm_api.schemas.base import Echoed, Flag, Part
from wllm_api.schemas.tagged import known_type, tag, tag_of
from wllm_api.schemas.tools import (
    MAX_TOOLS,
    AllowedNames,
    AllowedTools,
    LongName,
    Tool,
    ToolChoice,
    known_choice,
    tool_named,
    tool_of,
)


class ResponseTool(Part):
    """A function of the client; `parameters` is a JSON schema."""

    type: Literal["function"]
    """What kind of tool it is."""
    name: LongName
    """What calls name."""
    description: StrictStr | None = None
    """What it is for, told to the model."""
    parameters: Echoed | None = None
    """The JSON schema of its arguments."""
    strict: Flag = False
    """Refuse the request if a call cannot be held to the schema; without it such a call is any JSON object."""

    def plain(self) -> Tool:
        """The same as chat writes it."""
        return tool_of(self.name, self.description, self.parameters, strict=self.strict)


class Namespace(Part):
    """Functions that belong together; a call of one of them tells the name of the namespace too."""

    type: Literal["namespace"]
    """What kind of tool it is."""
    name: LongName
    """The namespace, as calls name it."""
    description: StrictStr | None = None
    """What they have in common, told to the model with each of them."""
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)]
    """The functions."""


SEARCHES = ("web_search", "web_search_preview")


class WebSearch(Part):
    """A search that runs on OpenAI's servers. The model is not shown it, so it never searches, as it may."""

    no_effect: ClassVar[frozenset[str]] = frozenset({
        "external_web_access", "filters", "search_content_types", "search_context_size", "user_location",
    })  # fmt: skip

    type: Literal["web_search", "web_search_preview"]
    """What kind of tool it is."""


AnyTool = Annotated[
    Annotated[ResponseTool, tag("function")]
    | Annotated[Namespace, tag("namespace")]
    | Annotated[WebSearch, tag("web_search")]
    | Annotated[WebSearch, tag("web_search_preview")],
    Discriminator(tag_of()),
    BeforeValidator(known_type("a tool", ("function", "namespace", "web_search", "web_search_preview"))),
]


class OwnFunction(NamedTuple):
    """A function of the client, where the request has it, and the namespace that it belongs to."""

    tool: ResponseTool
    place: str
    namespace: str | None


def functions(tools: Iterable[AnyTool]) -> Iterator[OwnFunction]:
    """The functions of the client; those in a namespace have its description too."""
    for number, tool in enumerate(tools):
        place = f"tools[{number}]"
        if isinstance(tool, ResponseTool):
            yield OwnFunction(tool, place, None)
        elif isinstance(tool, Namespace):
            for inner, one in enumerate(tool.tools):
                text = "\n".join(filter(None, (tool.description, one.description))) or None
                described = one.model_copy(update={"description": text})
                yield OwnFunction(described, f"{place}.tools[{inner}]", tool.name)


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

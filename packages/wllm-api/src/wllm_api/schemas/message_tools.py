"""The tools of Anthropic's messages, and what they mean in OpenAI's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, StrictStr, model_validator

from wllm_api.schemas.base import Flag, Part
from wllm_api.schemas.tools import LongName, Tool, ToolChoice, tool_named, tool_of


def _own(kind: object) -> object:
    if kind != "custom":
        raise ValueError(f"is {kind!r:.80}, which runs on Anthropic's servers; only tools of your own can be used")
    return kind


class MessageTool(Part):
    """A tool of the client. `cache_control` has no effect, arguments are always streamed as they come."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"cache_control", "eager_input_streaming"})
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "allowed_callers": (["direct"], []),
        "defer_loading": (False,),
        "input_examples": ([],),
    }

    type: Annotated[Literal["custom"], BeforeValidator(_own)] = "custom"
    """There is no other kind."""
    name: LongName
    """Up to 128 letters, digits, `_` and `-`."""
    description: StrictStr | None = None
    """What the tool is for, in words for the model."""
    input_schema: dict[str, Any]
    """The JSON schema of its arguments."""
    strict: Flag = False
    """Refuse the request if a call cannot be held to the schema; without it such a call is any JSON object."""

    @model_validator(mode="before")
    @classmethod
    def _nothing_lost(cls, data: object) -> object:
        for name, harmless in cls.unsupported.items():
            if isinstance(data, dict) and data.get(name) is not None and data[name] not in harmless:
                raise ValueError(f"'{name}' is not supported by this server. Leave it out")
        return data

    def plain(self) -> Tool:
        """The same as OpenAI's API writes it."""
        return tool_of(self.name, self.description, self.input_schema, strict=self.strict)


class MessageToolChoice(Part):
    """A choice among the tools, in Anthropic's words."""

    type: Literal["auto", "any", "tool", "none"]
    """`auto`: as the model likes; `any`: at least one call; `tool`: a call of `name`; `none`: no call."""
    name: LongName | None = None
    """The tool that must be called."""
    disable_parallel_tool_use: Flag = False
    """Whether an answer may make one call only."""

    @model_validator(mode="after")
    def _tool_has_a_name(self) -> MessageToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("a choice of the type 'tool' needs the 'name' of the tool")
        if self.type != "tool" and self.name is not None:
            raise ValueError(
                f"a choice of the type '{self.type}' has no 'name'. Leave it out, or choose the type 'tool'"
            )
        return self

    def plain(self) -> ToolChoice:
        """The same as OpenAI's API writes it."""
        if self.type == "tool" and self.name is not None:
            return tool_named(self.name)
        return "required" if self.type == "any" else "none" if self.type == "none" else "auto"

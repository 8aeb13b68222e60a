"""The content blocks of Anthropic's messages, and what they mean as chat messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, StrictStr

from wllm_api.schemas.base import Flag, Part
from wllm_api.schemas.chat import ChatMessage, earlier_call
from wllm_api.schemas.parts import joined_text
from wllm_api.schemas.tagged import known_type, tag, tag_of


def _joined_blocks(content: object) -> str:
    return joined_text(content, {"text": "text"}, noun="block", separator="\n")


BlockText = Annotated[str, BeforeValidator(_joined_blocks)]


class TextBlock(Part):
    """Some text. `cache_control` has no effect: every prefix is cached."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"cache_control", "citations"})

    type: Literal["text"]
    """Says that this is text."""
    text: StrictStr
    """The text."""


class ThinkingBlock(Part):
    """An earlier thought; its signature is not looked at."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"cache_control", "signature"})

    type: Literal["thinking"]
    """Says that this is a thought."""
    thinking: StrictStr
    """The thought."""


class ToolUseBlock(Part):
    """An earlier call."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"cache_control", "caller"})

    type: Literal["tool_use"]
    """Says that this is a call."""
    id: StrictStr
    """What the call's result refers to."""
    name: StrictStr
    """The tool's name."""
    input: dict[str, Any] = Field(default_factory=dict)
    """The arguments."""


class ToolResultBlock(Part):
    """What a call gave; of an error the model is told by a word in front."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"cache_control"})

    type: Literal["tool_result"]
    """Says that this is the result of a call."""
    tool_use_id: StrictStr
    """The id of the call."""
    content: BlockText = ""
    """What the tool gave: a text, or text blocks."""
    is_error: Flag = False
    """Whether the tool failed."""

    @property
    def text(self) -> str:
        """The text for the model."""
        return f"Error: {self.content}" if self.is_error else self.content


Block = Annotated[
    Annotated[TextBlock, tag("text")]
    | Annotated[ThinkingBlock, tag("thinking")]
    | Annotated[ToolUseBlock, tag("tool_use")]
    | Annotated[ToolResultBlock, tag("tool_result")],
    Discriminator(tag_of()),
    BeforeValidator(known_type("a block", ("text", "thinking", "tool_use", "tool_result"))),
]


def _listed(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Blocks = Annotated[list[Block], BeforeValidator(_listed)]
Role = Literal["user", "assistant", "system"]


def turns(role: Role, blocks: Sequence[Block], called: Mapping[str, str]) -> Iterator[ChatMessage]:
    """One message as chat messages: results of tools are messages of their own; `called` has names by call id."""
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            if texts:
                yield ChatMessage(role=role, content="\n".join(texts))
                texts = []
            name = called.get(block.tool_use_id)
            yield ChatMessage(role="tool", content=block.text, tool_call_id=block.tool_use_id, name=name)
        elif isinstance(block, TextBlock):
            texts.append(block.text)
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [earlier_call(block.id, block.name, block.input) for block in blocks if isinstance(block, ToolUseBlock)]
    if texts or thoughts or calls or not blocks:
        yield ChatMessage(
            role=role,
            content="\n".join(texts),
            reasoning_content="\n".join(thoughts) or None,
            tool_calls=calls,
        )


def joined(turn: ChatMessage, more: ChatMessage) -> ChatMessage:
    """Two neighbouring turns of one role as one, with a line break between their texts."""
    thoughts = [text for text in (turn.reasoning_content, more.reasoning_content) if text is not None]
    return ChatMessage(
        role=turn.role,
        content="\n".join(text for text in (turn.content, more.content) if text),
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=[*turn.tool_calls, *more.tool_calls],
    )

"""The input items of /v1/responses, and what they mean as chat messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, StrictStr

from wllm_api.schemas.base import Part
from wllm_api.schemas.chat import ChatMessage, FunctionCall, ToolCall
from wllm_api.schemas.parts import joined_text
from wllm_api.schemas.tagged import known_type, tag, tag_of

_TEXT_PARTS = {
    "input_text": "text", "output_text": "text", "reasoning_text": "text", "refusal": "refusal",
    "summary_text": "text", "text": "text",
}  # fmt: skip


def _joined_parts(content: object) -> str:
    return joined_text(content, _TEXT_PARTS)


PartsText = Annotated[str, BeforeValidator(_joined_parts)]


class MessageItem(Part):
    """A message of the conversation; the state of an earlier answer is not looked at."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"phase", "status"})

    type: Literal["message"] = "message"
    """What kind of item it is; a message where absent."""
    id: StrictStr | None = None
    """Shown by `input_items`."""
    role: Literal["user", "assistant", "system", "developer"]
    """Who speaks."""
    content: PartsText
    """A text, or a list of parts with text."""

    def listed(self) -> dict[str, object]:
        """The item as it is shown later."""
        kind = "output_text" if self.role == "assistant" else "input_text"
        part: dict[str, object] = {"type": kind, "text": self.content}
        if self.role == "assistant":
            part["annotations"] = []
        return {"type": self.type, "role": self.role, "status": "completed", "content": [part]}


class CallItem(Part):
    """A call of a function that the model made earlier; `arguments` is JSON as text."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"caller", "status"})

    type: Literal["function_call"]
    """What kind of item it is."""
    id: StrictStr | None = None
    """Shown by `input_items`."""
    call_id: StrictStr
    """What the output of the call refers to."""
    name: StrictStr
    """The function."""
    namespace: StrictStr | None = None
    """Shown by `input_items`."""
    arguments: StrictStr
    """JSON as text."""

    def listed(self) -> dict[str, object]:
        """The item as it is shown later."""
        return {
            "type": self.type, "status": "completed", "call_id": self.call_id, "name": self.name,
            "arguments": self.arguments, **({} if self.namespace is None else {"namespace": self.namespace}),
        }  # fmt: skip


class CallOutputItem(Part):
    """What a call gave."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"caller", "status"})

    type: Literal["function_call_output"]
    """What kind of item it is."""
    id: StrictStr | None = None
    """Shown by `input_items`."""
    call_id: StrictStr
    """The call."""
    output: PartsText
    """A text, or a list of parts with text."""

    def listed(self) -> dict[str, object]:
        """The item as it is shown later."""
        return {"type": self.type, "status": "completed", "call_id": self.call_id, "output": self.output}


class ReasoningItem(Part):
    """An earlier thought: its text, or else its summary; what is encrypted cannot be read."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"encrypted_content", "status"})

    type: Literal["reasoning"]
    """What kind of item it is."""
    id: StrictStr | None = None
    """Shown by `input_items`."""
    summary: PartsText = ""
    """Used where there is no content."""
    content: PartsText = ""
    """The thought, as a list of parts with text."""

    def listed(self) -> dict[str, object]:
        """The item as it is shown later."""
        parts = [{"type": "reasoning_text", "text": self.content}] if self.content else []
        summary = [{"type": "summary_text", "text": self.summary}] if self.summary else []
        return {"type": self.type, "status": "completed", "summary": summary, "content": parts}


InputItem = Annotated[
    Annotated[MessageItem, tag("message")]
    | Annotated[CallItem, tag("function_call")]
    | Annotated[CallOutputItem, tag("function_call_output")]
    | Annotated[ReasoningItem, tag("reasoning")],
    Discriminator(tag_of("message")),
    BeforeValidator(
        known_type("an input item", ("message", "function_call", "function_call_output", "reasoning"), "message")
    ),
]


def chat_messages(items: Iterable[InputItem]) -> list[ChatMessage]:
    """The conversation. A thought, a text and calls that follow each other are one message of the assistant."""
    messages: list[ChatMessage] = []
    called: dict[str, str] = {}
    for item in items:
        last = messages[-1] if messages and messages[-1].role == "assistant" else None
        if isinstance(item, CallOutputItem):
            name = called.get(item.call_id)
            messages.append(ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id, name=name))
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append(ChatMessage(role=item.role, content=item.content))
        elif isinstance(item, CallItem):
            called[item.call_id] = item.name
            call = ToolCall(id=item.call_id, function=FunctionCall(name=item.name, arguments=item.arguments))
            if last is None:
                messages.append(ChatMessage(role="assistant", tool_calls=[call]))
            else:
                messages[-1] = last.model_copy(update={"tool_calls": [*last.tool_calls, call]})
        elif isinstance(item, ReasoningItem):
            thought = item.content or item.summary
            if thought:
                messages.append(ChatMessage(role="assistant", reasoning_content=thought))
        elif last is not None and last.content is None and not last.tool_calls:
            messages[-1] = last.model_copy(update={"content": item.content})
        else:
            messages.append(ChatMessage(role="assistant", content=item.content))
    return messages

"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr, model_validator

from wllm_api.schemas.base import Flag, Part
from wllm_api.schemas.parts import joined_text
from wllm_api.schemas.sampling import MAX_LOGPROBS, SamplingFields
from wllm_api.schemas.tools import MAX_TOOLS, Tool, ToolChoice

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]


def _joined_text(content: object) -> str:
    return joined_text(content, {"text": "text", "refusal": "refusal"})


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("must be 1 or more (or -1 for no limit): a chat answer needs at least 1 token")
    return value


class FunctionCall(Part):
    """The function of a tool call; `arguments` is JSON as text."""

    name: StrictStr
    arguments: StrictStr = ""


class ToolCall(Part):
    """A call that the assistant made earlier."""

    id: StrictStr = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Part):
    """One message; content parts are joined to one text."""

    role: Role
    content: Annotated[str, BeforeValidator(_joined_text)] | None = None
    name: StrictStr | None = None
    refusal: StrictStr | None = None
    reasoning: StrictStr | None = None
    reasoning_content: StrictStr | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: StrictStr | None = None

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message with the role '{self.role}' needs 'content'")
        return self


class ChatRequest(SamplingFields):
    """A chat completion request."""

    no_effect: ClassVar[frozenset[str]] = SamplingFields.no_effect - {"include_reasoning", "parallel_tool_calls"}
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **SamplingFields.unsupported,
        "audio": (),
        "chat_template": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "modalities": (["text"],),
        "web_search_options": (),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[StrictInt, Field(ge=-1), AfterValidator(_not_zero)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=-1), AfterValidator(_not_zero)] | None = None
    logprobs: Flag = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: Flag = True
    include_reasoning: Flag = True
    reasoning_effort: StrictStr | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    add_special_tokens: Flag = False
    echo: Flag = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def ignored(cls, data: Mapping[str, object]) -> list[str]:
        """Also names inside the messages, as "messages.NAME"."""
        messages = data.get("messages")
        inside = {
            f"messages.{name}"
            for message in (messages if isinstance(messages, list) else [])
            if isinstance(message, dict)
            for name, value in message.items()
            if name not in ChatMessage.model_fields and value not in (None, [])
        }
        return [*super().ignored(data), *sorted(inside)]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("'top_logprobs' is only allowed with 'logprobs': true")
        if self.continue_final_message:
            if self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set:
                raise ValueError("'continue_final_message' and 'add_generation_prompt' cannot both be true")
            if self.messages[-1].role != "assistant":
                raise ValueError("'continue_final_message' needs an assistant message at the end of 'messages'")
        return self

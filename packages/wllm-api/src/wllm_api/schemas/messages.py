"""The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens.

Blocks of text, and neighbouring turns of one role, become one text with a line break between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, StrictInt, StrictStr, model_validator

from wllm_api.schemas.base import MAX_MESSAGES, Body, Flag, Number, Part
from wllm_api.schemas.chat import ChatMessage
from wllm_api.schemas.message_blocks import Blocks, BlockText, Role, ToolUseBlock, joined, turns
from wllm_api.schemas.message_tools import MessageTool, MessageToolChoice
from wllm_api.schemas.sampling import SamplingFields, StopList
from wllm_api.schemas.tools import MAX_TOOLS, ToolUse, told_apart

_ROLE_BLOCKS: dict[Role, frozenset[str]] = {
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "tool_use"}),
    "system": frozenset({"text"}),
}


class Message(Part):
    """One turn."""

    role: Role
    """Whose turn it is."""
    content: Blocks
    """A text, or a list of blocks."""

    @model_validator(mode="after")
    def _blocks_of_the_role(self) -> Self:
        for block in self.content:
            if block.type not in _ROLE_BLOCKS[self.role]:
                raise ValueError(f"a message of the role '{self.role}' cannot hold a block of the type '{block.type}'")
        return self


class OutputConfig(Part):
    """How the answer should be."""

    effort: StrictStr | None = None
    """A variable for the chat template."""
    format: dict[str, Any] | None = None
    """The form of the answer: `json_schema` with a `schema`, which is enforced."""


class Thinking(Part):
    """Whether the model thinks first; `max_tokens` holds for thoughts and answer together."""

    type: Literal["enabled", "adaptive", "disabled"]
    """Whether the model thinks first; `adaptive` is `enabled`."""
    budget_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """A variable for the chat template; what holds is `max_tokens`."""
    display: Literal["summarized", "omitted"] = "summarized"
    """`omitted` keeps the thoughts out of the answer."""

    @property
    def is_on(self) -> bool:
        """Whether the request asks for thoughts."""
        return self.type != "disabled"


class KeptTurns(Part):
    """How many turns keep their thoughts."""

    type: Literal["thinking_turns", "all"]
    """`all`, or as many as `value` says."""
    value: Annotated[StrictInt, Field(ge=1)] = 1
    """The number of turns, the last ones."""


class ClearThinking(Part):
    """An edit that drops the thoughts of earlier turns."""

    type: Literal["clear_thinking_20251015"]
    """What kind of edit it is."""
    keep: Literal["all"] | KeptTurns = KeptTurns(type="thinking_turns")
    """The turns that keep their thoughts."""


class ContextManagement(Part):
    """What is left out of the conversation before the model sees it."""

    edits: list[ClearThinking] = Field(default_factory=list)
    """The edits, one after the other."""


class CountTokensRequest(Body):
    """A conversation to count; what a message request shares with it."""

    no_effect: ClassVar[frozenset[str]] = frozenset({
        "billing_policy", "cache_control", "diagnostics", "fallback_credit_token", "inference_geo", "metadata",
        "service_tier", "speed", "user_profile_id", "workspace_id",
    })  # fmt: skip
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "compaction": (),
        "container": (),
        "fallbacks": ([],),
        "mcp_servers": ([],),
        "output_format": (),
        "thread": (),
    }

    model: StrictStr | None = None
    """One of the served names; absent: the only model there is."""
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    """The conversation so far; a last message of the assistant is gone on with."""
    system: BlockText | None = None
    """What the model is told before the conversation: a text, or text blocks."""
    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS), AfterValidator(told_apart)] = Field(
        default_factory=list
    )
    """The tools that the model may call."""
    tool_choice: MessageToolChoice = MessageToolChoice(type="auto")
    """Which tools are to be used."""
    thinking: Thinking = Thinking(type="disabled")
    """Whether the model thinks before it answers."""
    output_config: OutputConfig = OutputConfig()
    """The effort and the form of the answer."""
    context_management: ContextManagement = ContextManagement()
    """Thoughts of earlier turns to leave out."""

    @model_validator(mode="after")
    def _no_open_call(self) -> Self:
        if any(isinstance(block, ToolUseBlock) for block in self.messages[-1].content):
            raise ValueError("the last message calls a tool. Send what it gave, as a 'tool_result', after it")
        return self

    @property
    def continues(self) -> bool:
        """Whether the answer goes on from the assistant's own words at the end."""
        return self.messages[-1].role == "assistant"

    @property
    def tool_use(self) -> ToolUse:
        """The tools and the choice in OpenAI's words."""
        choice = self.tool_choice
        tools = [tool.plain() for tool in self.tools]
        fields = [f"tools[{number}].input_schema" for number in range(len(tools))]
        return ToolUse(tools, choice.plain(), not choice.disable_parallel_tool_use, fields)

    def conversation(self) -> list[ChatMessage]:
        """The turns as chat messages, the system's words first; raises `InvalidRequest`."""
        chat: list[ChatMessage] = []
        if self.system:
            chat.append(ChatMessage(role="system", content=self.system))
        called: dict[str, str] = {}
        for message in self.messages:
            for turn in turns(message.role, message.content, called):
                alike = bool(chat) and chat[-1].role == turn.role and turn.role in ("user", "assistant")
                chat.append(joined(chat.pop(), turn) if alike else turn)
            called |= {block.id: block.name for block in message.content if isinstance(block, ToolUseBlock)}
        for edit in self.context_management.edits:
            if isinstance(edit.keep, KeptTurns) and edit.keep.type == "thinking_turns":
                thoughts = [number for number, turn in enumerate(chat) if turn.reasoning_content is not None]
                for number in thoughts[: -edit.keep.value]:
                    chat[number] = chat[number].model_copy(update={"reasoning_content": None})
        return chat

    def template_variables(self) -> dict[str, object]:
        """What the chat template is told: to think only when the request asks for it."""
        variables: dict[str, object] = {"enable_thinking": self.thinking.is_on}
        if self.thinking.is_on and self.thinking.budget_tokens is not None:
            variables["thinking_budget"] = self.thinking.budget_tokens
        if self.output_config.effort is not None:
            variables["reasoning_effort"] = self.output_config.effort
        return variables


class MessagesRequest(CountTokensRequest):
    """A message request."""

    max_tokens: Annotated[StrictInt, Field(ge=1)]
    """The most tokens of the answer, thoughts and calls included."""
    stop_sequences: StopList = Field(default_factory=list)
    """Up to 16 texts that end the answer where one of them comes up."""
    temperature: Annotated[Number, Field(ge=0, le=1)] = 1.0
    """Higher is more random; 0 always takes the likeliest token. The model may recommend another default."""
    top_p: Annotated[Number, Field(ge=0, le=1)] = 1.0
    """Only the likeliest tokens that together have this probability."""
    top_k: Annotated[StrictInt, Field(ge=0)] = 0
    """Only so many of the likeliest tokens; 0 is off."""
    stream: Flag = False
    """Send the answer piece by piece, as server-sent events."""

    def sampling(self) -> SamplingFields:
        """The sampling fields, only those set that the request sets: the model's defaults stand for the others."""
        given = {
            name: getattr(self, name) for name in ("temperature", "top_p", "top_k") if name in self.model_fields_set
        }
        return SamplingFields(stop=self.stop_sequences, **given)

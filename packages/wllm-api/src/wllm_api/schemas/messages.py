"""The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens.

Blocks of text, and neighbouring turns of one role, become one text with a line break between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictInt, StrictStr

from wllm_api.http_errors import Unsupported
from wllm_api.schemas.base import Body, Flag, Number, Part
from wllm_api.schemas.chat import ChatMessage
from wllm_api.schemas.parts import joined_text
from wllm_api.schemas.sampling import SamplingFields, StopList


def _joined_blocks(content: object) -> str:
    return joined_text(content, {"text": "text"}, noun="block", separator="\n")


BlockText = Annotated[str, BeforeValidator(_joined_blocks)]


class Message(Part):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: BlockText


class OutputConfig(Part):
    """How hard the model should try."""

    effort: StrictStr | None = None


class CountTokensRequest(Body):
    """A conversation to count; what a message request shares with it."""

    no_effect: ClassVar[frozenset[str]] = frozenset({
        "cache_control", "diagnostics", "inference_geo", "metadata", "service_tier", "speed", "user_profile_id",
        "workspace_id",
    })  # fmt: skip
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "container": (),
        "context_management": ({}, {"edits": []}),
        "mcp_servers": ([],),
        "output_format": (),
        "thinking": ({"type": "disabled"},),
        "tool_choice": ({"type": "auto"}, {"type": "none"}),
        "tools": ([],),
    }

    model: StrictStr | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    system: BlockText | None = None
    output_config: OutputConfig = OutputConfig()

    @classmethod
    def ignored(cls, data: Mapping[str, object]) -> list[str]:
        """Also names inside the messages, as "messages.NAME"."""
        messages = data.get("messages")
        inside = {
            f"messages.{name}"
            for message in (messages if isinstance(messages, list) else [])
            if isinstance(message, dict)
            for name, value in message.items()
            if name not in Message.model_fields and value is not None
        }
        return [*super().ignored(data), *sorted(inside)]

    @classmethod
    def refuse_unsupported(cls, data: Mapping[str, object]) -> None:
        """Also an output format, which lies one level deeper."""
        super().refuse_unsupported(data)
        config = data.get("output_config")
        if isinstance(config, dict) and config.get("format") is not None:
            raise Unsupported(
                "'output_config.format' is not supported by this server. Ask for the format in the prompt.",
                param="output_config.format",
            )

    @property
    def continues(self) -> bool:
        """Whether the answer goes on from the assistant's own words at the end."""
        return self.messages[-1].role == "assistant"

    def conversation(self) -> list[ChatMessage]:
        """The turns as chat messages, the system's words first."""
        turns: list[ChatMessage] = []
        if self.system:
            turns.append(ChatMessage(role="system", content=self.system))
        for message in self.messages:
            text = message.content
            if turns and turns[-1].role == message.role != "system":
                text = f"{turns.pop().content}\n{text}"
            turns.append(ChatMessage(role=message.role, content=text))
        return turns

    def template_variables(self) -> dict[str, object]:
        """What the chat template is told: no thinking, since nobody asked for it."""
        effort = self.output_config.effort
        return {"enable_thinking": False, **({"reasoning_effort": effort} if effort is not None else {})}


class MessagesRequest(CountTokensRequest):
    """A message request."""

    max_tokens: Annotated[StrictInt, Field(ge=1)]
    stop_sequences: StopList = Field(default_factory=list)
    temperature: Annotated[Number, Field(ge=0, le=1)] = 1.0
    top_p: Annotated[Number, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[StrictInt, Field(ge=0)] = 0
    stream: Flag = False

    def sampling(self) -> SamplingFields:
        """The sampling fields, only those set that the request sets: the model's defaults stand for the others."""
        given = {
            name: getattr(self, name) for name in ("temperature", "top_p", "top_k") if name in self.model_fields_set
        }
        return SamplingFields(stop=self.stop_sequences, **given)

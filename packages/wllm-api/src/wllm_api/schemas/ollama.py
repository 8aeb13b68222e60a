"""POST /api/chat, /api/generate, /api/show and the rest of Ollama's API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, StrictInt, StrictStr, model_validator

from wllm_api.durations import seconds_of
from wllm_api.http_errors import Unsupported
from wllm_api.schemas.base import MAX_MESSAGES, Body, Flag, Part
from wllm_api.schemas.chat import ChatMessage, earlier_call
from wllm_api.schemas.ollama_options import Options
from wllm_api.schemas.sampling import MAX_LOGPROBS
from wllm_api.schemas.tools import Tools


def _duration(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number of seconds or a duration such as '5m'")
    return seconds_of(value) if isinstance(value, str) else value if value >= 0 else math.inf


KeepAlive = Annotated[float | None, BeforeValidator(_duration)]


def _format(value: object) -> object:
    if isinstance(value, str) and value not in ("", "json"):
        raise ValueError(f"is {value!r:.80}; use 'json', or a JSON schema as an object")
    return None if value == "" else value


def _think(value: object) -> object:
    if not isinstance(value, bool) and value not in ("low", "medium", "high", "max"):
        raise ValueError("must be true, false, 'low', 'medium', 'high' or 'max'")
    return value


class OllamaCall(Part):
    """The function of an earlier tool call; its arguments are an object, not text."""

    name: StrictStr
    """The function."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Its arguments by name."""


class OllamaToolCall(Part):
    """A call that the assistant made earlier."""

    id: StrictStr = ""
    """What the result of the call may refer to."""
    function: OllamaCall
    """What was called."""


class OllamaMessage(Part):
    """One message of a conversation; images are refused by the request."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"images": ([],)}

    role: Literal["system", "user", "assistant", "tool"]
    """Who speaks."""
    content: StrictStr = ""
    """The text."""
    thinking: StrictStr | None = None
    """An earlier thought of the assistant."""
    tool_calls: list[OllamaToolCall] = Field(default_factory=list)
    """Earlier calls of the assistant."""
    tool_name: StrictStr | None = None
    """The tool whose result this is."""
    tool_call_id: StrictStr | None = None
    """The call whose result this is."""

    def plain(self) -> ChatMessage:
        """The same as OpenAI's API writes it; raises `InvalidRequest`."""
        calls = [earlier_call(call.id, call.function.name, call.function.arguments) for call in self.tool_calls]
        return ChatMessage(
            role=self.role,
            content=self.content,
            name=self.tool_name,
            reasoning_content=self.thinking,
            tool_calls=calls,
            tool_call_id=self.tool_call_id,
        )


class OllamaBody(Body):
    """What all of Ollama's requests hold."""

    model: Annotated[StrictStr, Field(min_length=1)]
    """One of the served names, with or without `:latest`."""
    keep_alive: KeepAlive = None
    """How long the model stays loaded without requests, if the server unloads models; below 0 is for ever."""

    @property
    def asks_to_unload(self) -> bool:
        """Whether `keep_alive` is no time at all."""
        return self.keep_alive == 0


class GenerationBody(OllamaBody):
    """What /api/chat and /api/generate share."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"shift": (False,)}

    stream: Flag = True
    """Lines as they come, or one object."""
    options: Options = Options()
    """Sampling and limits."""
    format: Annotated[dict[str, Any] | StrictStr | None, BeforeValidator(_format)] = None
    """`json`, or a JSON schema that the answer is held to."""
    think: Annotated[bool | Literal["low", "medium", "high", "max"] | None, BeforeValidator(_think)] = None
    """Whether the model thinks, and how long; its thoughts come apart. The model's own way where absent."""
    logprobs: Flag = False
    """The log-probability of each token."""
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] = 0
    """How many alternatives each of them has."""

    @classmethod
    def refuse_unsupported(cls, data: Mapping[str, object]) -> None:
        """Also options."""
        super().refuse_unsupported(data)
        options = data.get("options")
        if isinstance(options, dict):
            Options.refuse_unsupported(options)

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("'top_logprobs' is only allowed with 'logprobs': true")
        return self

    @property
    def shows_thoughts(self) -> bool:
        """Whether thoughts are to be seen."""
        return self.think is not False

    @property
    def template_variables(self) -> dict[str, object]:
        """What the chat template is told beside the messages."""
        if isinstance(self.think, str):
            return {"enable_thinking": True, "reasoning_effort": self.think}
        return {} if self.think is None else {"enable_thinking": self.think}


class OllamaChatRequest(GenerationBody):
    """A conversation; no messages ask only whether the model is there."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES)] = Field(default_factory=list)
    """The conversation; without any, the question is whether the model is there."""
    tools: Tools = Field(default_factory=list)
    """Functions that the model may call."""
    truncate: Flag = False
    """Whether the oldest turns of a conversation that does not fit are left out."""

    @classmethod
    def refuse_unsupported(cls, data: Mapping[str, object]) -> None:
        """Also images in the messages."""
        super().refuse_unsupported(data)
        for number, message in enumerate(_objects(data.get("messages"))):
            if message.get("images") not in (None, []):
                raise Unsupported(
                    "'images' are not supported by this server. Send text only.", param=f"messages[{number}].images"
                )


class OllamaGenerateRequest(GenerationBody):
    """One prompt, through the model's template unless `raw`; an empty one asks only whether the model is there."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationBody.unsupported,
        "context": ([],),
        "height": (0,),
        "images": ([],),
        "steps": (0,),
        "template": ("",),
        "truncate": (False,),
        "width": (0,),
    }

    prompt: StrictStr = ""
    """What is asked; when it is empty, whether the model is there."""
    suffix: StrictStr = ""
    """What comes after the answer, for models that fill in the middle."""
    system: StrictStr = ""
    """A system message in front of the prompt."""
    raw: Flag = False
    """The prompt as it is, without the chat template."""

    @model_validator(mode="after")
    def _raw_means_raw(self) -> Self:
        reason = "'raw': true" if self.raw else "'suffix'" if self.suffix else None
        for name in ("system", "think"):
            if reason is not None and getattr(self, name):
                raise ValueError(f"'{name}' is not allowed with {reason}, which goes without the chat template")
        return self


class ShowRequest(Body):
    """A question about the model; `name` is what older clients call it."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"options", "system", "template", "verbose"})

    model: StrictStr = ""
    """One of the served names, with or without `:latest`."""
    name: StrictStr = ""
    """An older name of `model`."""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        if not (self.model or self.name):
            raise ValueError("'model' is required")
        return self


def _objects(messages: object) -> list[dict[str, object]]:
    return [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []

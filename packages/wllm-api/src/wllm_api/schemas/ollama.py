"""POST /api/chat, /api/generate, /api/show and the rest of Ollama's API."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, StrictInt, StrictStr, model_validator

from wllm_api.http_errors import Unsupported
from wllm_api.schemas.base import Body, Flag, Part
from wllm_api.schemas.chat import ChatMessage, FunctionCall, ToolCall
from wllm_api.schemas.ollama_options import Options
from wllm_api.schemas.sampling import MAX_LOGPROBS

_NUMBER, _UNIT = r"(\d+(\.\d*)?|\.\d+)", "(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(f"[+-]?({_NUMBER}|({_NUMBER}{_UNIT})+)")


def _duration(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, str) and len(value) <= 64 and _DURATION.fullmatch(value)):
        raise ValueError("must be a number of seconds or a duration such as '5m'")
    return str(value)


class OllamaCall(Part):
    """The function of an earlier tool call; its arguments are an object, not text."""

    name: StrictStr
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaToolCall(Part):
    """A call that the assistant made earlier."""

    id: StrictStr = ""
    function: OllamaCall


class OllamaMessage(Part):
    """One message of a conversation; images are refused by the request."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"images": ([],)}

    role: Literal["system", "user", "assistant", "tool"]
    content: StrictStr = ""
    thinking: StrictStr | None = None
    tool_calls: list[OllamaToolCall] = Field(default_factory=list)
    tool_name: StrictStr | None = None
    tool_call_id: StrictStr | None = None

    def plain(self) -> ChatMessage:
        """The same as OpenAI's API writes it; raises `RecursionError` for arguments that are nested too deeply."""
        calls = [
            ToolCall(
                id=call.id,
                function=FunctionCall(
                    name=call.function.name, arguments=json.dumps(call.function.arguments, ensure_ascii=False)
                ),
            )
            for call in self.tool_calls
        ]
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


class GenerationBody(OllamaBody):
    """What /api/chat and /api/generate share. `keep_alive` changes nothing: the model stays as long as the server."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "format": ("",),
        "shift": (False,),
        "truncate": (False,),
    }

    stream: Flag = True
    options: Options = Options()
    keep_alive: Annotated[str, BeforeValidator(_duration)] = "5m"
    think: Flag | None = None
    logprobs: Flag = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] = 0

    @classmethod
    def refuse_unsupported(cls, data: Mapping[str, object]) -> None:
        """Also options, and thinking apart from the answer."""
        super().refuse_unsupported(data)
        options = data.get("options")
        if isinstance(options, dict):
            Options.refuse_unsupported(options)
        think = data.get("think")
        if think is not None and think is not False:
            raise Unsupported(
                "'think' is not supported by this server, which does not part thinking from the answer. Leave it out, "
                "or send false to a model that can do without.",
                param="think",
            )

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("'top_logprobs' is only allowed with 'logprobs': true")
        return self

    @property
    def asks_to_unload(self) -> bool:
        """Whether `keep_alive` is no time at all."""
        return not re.search(r"[1-9]", self.keep_alive)

    @property
    def template_variables(self) -> dict[str, object]:
        """What the chat template is told beside the messages."""
        return {} if self.think is None else {"enable_thinking": self.think}


class OllamaChatRequest(GenerationBody):
    """A conversation; no messages ask only whether the model is there."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {**GenerationBody.unsupported, "tools": ([],)}

    messages: list[OllamaMessage] = Field(default_factory=list)

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
        "suffix": ("",),
        "template": ("",),
        "width": (0,),
    }

    prompt: StrictStr = ""
    system: StrictStr = ""
    raw: Flag = False

    @model_validator(mode="after")
    def _raw_means_raw(self) -> Self:
        if self.raw and self.system:
            raise ValueError("'system' is not allowed with 'raw': true, which sends the prompt as it is")
        return self


class ShowRequest(Body):
    """A question about the model; `name` is what older clients call it."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"options", "system", "template", "verbose"})

    model: StrictStr = ""
    name: StrictStr = ""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        if not (self.model or self.name):
            raise ValueError("'model' is required")
        return self


class EmbedRequest(OllamaBody):
    """Texts to embed."""

    no_effect: ClassVar[frozenset[str]] = frozenset({
        "dimensions", "input", "keep_alive", "options", "prompt", "truncate",
    })  # fmt: skip


def _objects(messages: object) -> list[dict[str, object]]:
    return [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []

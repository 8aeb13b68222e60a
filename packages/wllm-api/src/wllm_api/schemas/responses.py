"""The body of /v1/responses: input items as chat messages, flat fields as sampling fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr

from wllm_api.http_errors import InvalidRequest, Unsupported
from wllm_api.schemas.base import Body, Flag, Number, Part
from wllm_api.schemas.chat import ChatMessage
from wllm_api.schemas.parts import joined_text
from wllm_api.schemas.sampling import INT64, MAX_LOGPROBS, SamplingFields

# `include` may ask for more of what this server never has; those entries ask for nothing.
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset({
    LOGPROBS, "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url", "reasoning.encrypted_content", "web_search_call.action.sources",
    "web_search_call.results",
})  # fmt: skip
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
# Sampling fields beside OpenAI's own that are passed on as they are.
_PASSED_ON = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "cache_salt")


def _joined_parts(content: object) -> str:
    return joined_text(content, _TEXT_PARTS)


def _input_items(value: object) -> object:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of input items")
    for number, item in enumerate(value):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind not in (None, "message"):
            raise ValueError(f"item {number} has the type {kind!r}, which this server cannot take, only 'message'")
    return value


def _known_entries(names: list[str]) -> list[str]:
    for name in names:
        if name not in INCLUDABLE:
            raise ValueError(f"holds '{name[:60]}', which is not known")
    return names


class InputMessage(Part):
    """A message of the conversation; ids and states of earlier answers are not looked at."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[str, BeforeValidator(_joined_parts)]


class Reasoning(Part):
    """How long the model should think."""

    effort: StrictStr | None = None


class ResponsesRequest(Body):
    """A response request."""

    no_effect: ClassVar[frozenset[str]] = frozenset({
        "access_programs", "max_tool_calls", "moderation", "parallel_tool_calls", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "store",
        "stream_options", "user",
    })  # fmt: skip
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "background_options": (),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "previous_response_id": (),
        "prompt": (),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "truncation": ("disabled",),
    }

    model: StrictStr | None = None
    input: Annotated[list[InputMessage], BeforeValidator(_input_items), Field(min_length=1)]
    instructions: StrictStr | None = None
    max_output_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[Number, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[StrictInt, Field(ge=-1)] = 0
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[Number, Field(gt=0)] = 1.0
    seed: Annotated[StrictInt, Field(ge=-INT64, lt=INT64)] | None = None
    cache_salt: StrictStr = ""
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] = 0
    include: Annotated[list[StrictStr], AfterValidator(_known_entries)] = Field(default_factory=list)
    metadata: dict[str, StrictStr] = Field(default_factory=dict)
    reasoning: Reasoning = Reasoning()
    text: dict[str, Any] = Field(default_factory=dict)
    stream: Flag = False

    @classmethod
    def refuse_unsupported(cls, data: Mapping[str, object]) -> None:
        """Also text formats, and answers that only a server with a memory could go on from."""
        if data.get("previous_response_id") is not None:
            raise Unsupported(
                "'previous_response_id' is not supported: this server keeps no answers. Send the whole conversation "
                "as 'input'.",
                param="previous_response_id",
            )
        super().refuse_unsupported(data)
        text = data.get("text")
        wanted = text.get("format") if isinstance(text, dict) else None
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        if wanted is None or kind == "text":
            return
        if kind in ("json_object", "json_schema", "grammar"):
            raise Unsupported(
                f"'text.format' of type '{kind}' is not supported by this server. Ask for the format in the prompt.",
                param="text.format",
            )
        raise InvalidRequest('\'text.format\' has an unknown type. Use {"type": "text"}.', param="text.format")

    @property
    def num_logprobs(self) -> int | None:
        """How many top entries a token's log-probabilities have; None for none at all."""
        return self.top_logprobs if self.top_logprobs or LOGPROBS in self.include else None

    def conversation(self) -> list[ChatMessage]:
        """The input as chat messages, the instructions first."""
        messages = [ChatMessage(role=item.role, content=item.content) for item in self.input]
        if self.instructions is None:
            return messages
        return [ChatMessage(role="system", content=self.instructions), *messages]

    def template_variables(self) -> dict[str, object]:
        """What the chat template is told."""
        effort = self.reasoning.effort
        return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}

    def sampling(self) -> SamplingFields:
        """The sampling fields, only those set that the request sets: the model's defaults stand for the others."""
        return SamplingFields(**{name: getattr(self, name) for name in _PASSED_ON if name in self.model_fields_set})

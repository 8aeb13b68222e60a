"""The body of /v1/responses: input items as chat messages, flat fields as sampling fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr

from wllm_api.schemas.base import MAX_MESSAGES, Body, Echoed, Flag, Number, Part
from wllm_api.schemas.chat import ChatMessage
from wllm_api.schemas.response_items import InputItem, chat_messages
from wllm_api.schemas.response_tools import SEARCHES, AnyTool, ResponseChoice, functions, plain_choice
from wllm_api.schemas.sampling import INT64, MAX_LOGPROBS, SamplingFields
from wllm_api.schemas.tools import MAX_TOOLS, ToolUse, told_apart

# `include` may ask for more of what this server never has; those entries ask for nothing.
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset({
    LOGPROBS, "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url", "reasoning.encrypted_content", "web_search_call.action.sources",
    "web_search_call.results",
})  # fmt: skip
MAX_METADATA = 16
# Sampling fields beside OpenAI's own that are passed on as they are.
_PASSED_ON = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "cache_salt")


def _input_items(value: object) -> object:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of input items")
    return value


def _known_entries(names: list[str]) -> list[str]:
    for name in names:
        if name not in INCLUDABLE:
            raise ValueError(f"holds '{name[:60]}', which is not known")
    return names


def _few_told_apart(tools: list[AnyTool]) -> list[AnyTool]:
    found = [one.tool for one in functions(tools)]
    if len(found) > MAX_TOOLS:
        raise ValueError(f"has {len(found)} functions; at most {MAX_TOOLS} are allowed")
    told_apart(found)
    return tools


class Reasoning(Part):
    """How long the model should think."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"context", "generate_summary", "mode", "summary"})

    effort: StrictStr | None = None
    """A variable for the chat template; `none` turns thinking off."""


class TextConfig(Part):
    """The form of the answer's text."""

    format: Echoed | None = None
    """`text`, `json_object`, or `json_schema` with a `schema`, which is enforced."""
    verbosity: StrictStr | None = None
    """Without effect: no chat template knows it."""


class InputTokensRequest(Body):
    """An input to count; what a response request shares with it."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"text", "truncation"})
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"conversation": (), "personality": ()}

    model: StrictStr | None = None
    """One of the served names; the served model where absent."""
    input: Annotated[list[InputItem], BeforeValidator(_input_items), Field(min_length=1, max_length=MAX_MESSAGES)]
    """A text, or a list of items: messages, calls, outputs of calls, thoughts."""
    instructions: StrictStr | None = None
    """A system message in front; not taken over from an earlier response."""
    previous_response_id: StrictStr | None = None
    """A kept response that this one goes on from."""
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS), AfterValidator(_few_told_apart)] = Field(
        default_factory=list
    )
    """Functions that the model may call."""
    tool_choice: ResponseChoice = "auto"
    """Which of them it may or must call."""
    parallel_tool_calls: Flag = True
    """Whether an answer may have several calls."""
    reasoning: Reasoning = Reasoning()
    """Whether the model thinks, and how long."""

    @classmethod
    def ignored(cls, data: Mapping[str, object]) -> list[str]:
        """Also searches, which the model is not shown."""
        tools = data.get("tools")
        kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        searches = [f"tools.{kind}" for kind in SEARCHES if kind in kinds]
        return [*super().ignored(data), *searches]

    @property
    def tool_use(self) -> ToolUse:
        """The tools and the choice in the words of chat."""
        found = list(functions(self.tools))
        tools = [one.tool.plain() for one in found]
        fields = [f"{one.place}.parameters" for one in found]
        return ToolUse(tools, plain_choice(self.tool_choice), self.parallel_tool_calls, fields)

    def conversation(self, earlier: Iterable[InputItem] = ()) -> list[ChatMessage]:
        """The `earlier` items and the input as chat messages, the instructions first."""
        messages = chat_messages([*earlier, *self.input])
        if self.instructions is None:
            return messages
        return [ChatMessage(role="system", content=self.instructions), *messages]

    def template_variables(self) -> dict[str, object]:
        """What the chat template is told."""
        effort = self.reasoning.effort
        return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}


class ResponsesRequest(InputTokensRequest):
    """A response request."""

    no_effect: ClassVar[frozenset[str]] = frozenset({
        "access_programs", "client_metadata", "max_tool_calls", "moderation", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "user",
    })  # fmt: skip
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "background_options": (),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "personality": (),
        "prompt": (),
    }

    store: Flag = True
    """Whether the response is kept in memory, as long as there is room."""
    truncation: Literal["auto", "disabled"] = "disabled"
    """`auto` leaves out the oldest turns of a conversation that does not fit."""
    max_output_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """The most tokens of thoughts and answer together; all that fit where absent."""
    temperature: Annotated[Number, Field(ge=0, le=2)] = 1.0
    """0 for the likeliest token each time."""
    top_p: Annotated[Number, Field(ge=0, le=1)] = 1.0
    """The share of probability that tokens are drawn from."""
    top_k: Annotated[StrictInt, Field(ge=-1)] = 0
    """How many of the likeliest tokens are drawn from; 0 or -1 for all."""
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """The least probability of a token, as a share of that of the likeliest."""
    repetition_penalty: Annotated[Number, Field(gt=0)] = 1.0
    """Above 1: tokens of prompt and answer become less likely."""
    seed: Annotated[StrictInt, Field(ge=-INT64, lt=INT64)] | None = None
    """Equal requests with equal seeds have equal answers."""
    cache_salt: StrictStr = ""
    """Keeps cached prefixes apart from those of other salts."""
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] = 0
    """How many alternatives each log-probability has."""
    include: Annotated[list[StrictStr], AfterValidator(_known_entries)] = Field(default_factory=list)
    """`message.output_text.logprobs` asks for log-probabilities."""
    metadata: Annotated[dict[str, StrictStr], Field(max_length=MAX_METADATA)] = Field(default_factory=dict)
    """Up to 16 texts by name, which come back in the answer."""
    text: TextConfig = TextConfig()
    """The form of the answer."""
    stream: Flag = False
    """Events instead of one object."""

    @property
    def namespaces(self) -> dict[str, str]:
        """The namespace of each function that has one."""
        return {one.tool.name: one.namespace for one in functions(self.tools) if one.namespace is not None}

    @property
    def num_logprobs(self) -> int | None:
        """How many top entries a token's log-probabilities have; None for none at all."""
        return self.top_logprobs if self.top_logprobs or LOGPROBS in self.include else None

    def sampling(self) -> SamplingFields:
        """The sampling fields, only those set that the request sets: the model's defaults stand for the others."""
        return SamplingFields(**{name: getattr(self, name) for name in _PASSED_ON if name in self.model_fields_set})

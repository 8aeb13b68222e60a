"""POST /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr, model_validator

from wllm_api.http_errors import InvalidRequest
from wllm_api.schemas.base import MAX_MESSAGES, Flag, Part
from wllm_api.schemas.parts import joined_text
from wllm_api.schemas.sampling import MAX_LOGPROBS, SamplingFields
from wllm_api.schemas.tools import (
    MAX_TOOLS,
    Function,
    FunctionChoice,
    FunctionName,
    NamedTool,
    Tool,
    ToolChoice,
    Tools,
    ToolUse,
    told_apart,
)
from wllm_api.text.template import OWN_VARIABLES

# Calls of the older spelling have no ids, and some templates take only ids of nine letters and digits.
OLD_ID = "function0"

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]


def _joined_text(content: object) -> str:
    return joined_text(content, {"text": "text", "refusal": "refusal"})


def _no_own_variable(variables: dict[str, Any]) -> dict[str, Any]:
    if taken := OWN_VARIABLES & variables.keys():
        raise ValueError(f"cannot set '{min(taken)}', which the request has a field for")
    return variables


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("must be 1 or more (or -1 for no limit): a chat answer needs at least 1 token")
    return value


TemplateVariables = Annotated[dict[str, Any], AfterValidator(_no_own_variable)]


class FunctionCall(Part):
    """The function of a tool call."""

    name: StrictStr
    """The function's name."""
    arguments: StrictStr = ""
    """Its arguments: JSON as text."""


class ToolCall(Part):
    """A call that the assistant made earlier."""

    id: StrictStr = ""
    """What the call's result refers to."""
    type: Literal["function"] = "function"
    """There is no other kind."""
    function: FunctionCall
    """The function and its arguments."""


def _old_call(message: dict[str, Any]) -> list[ToolCall]:
    call = message.get("function_call")
    return [] if call is None else [ToolCall(id=OLD_ID, function=call)]


def _old_result(message: dict[str, Any]) -> str | None:
    return OLD_ID if message.get("role") == "function" else None


def earlier_call(call_id: str, name: str, arguments: Mapping[str, object]) -> ToolCall:
    """An earlier call of an API that has arguments as objects; raises `InvalidRequest`."""
    try:
        text = json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest(
            "The arguments of a tool call are nested too deeply. Send flatter JSON.", param="messages"
        ) from None
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=text))


class ChatMessage(Part):
    """One message; content parts are joined to one text."""

    role: Role
    """Whose message it is; `developer` is `system` to the model, and `function` is `tool`."""
    content: Annotated[str, BeforeValidator(_joined_text)] | None = None
    """A text, or a list of parts of the types `text` and `refusal`; only the assistant's may be absent."""
    name: StrictStr | None = None
    """A name for the chat template, which may show it."""
    refusal: StrictStr | None = None
    """What the assistant said instead of content."""
    reasoning: StrictStr | None = None
    """What the assistant thought; `reasoning_content` wins."""
    reasoning_content: StrictStr | None = None
    """What the assistant thought."""
    function_call: FunctionCall | None = None
    """The older spelling of one tool call."""
    tool_calls: list[ToolCall] = Field(default_factory=_old_call)
    """The calls that the assistant made."""
    tool_call_id: StrictStr | None = Field(default_factory=_old_result)
    """Which call this message is the result of."""

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message with the role '{self.role}' needs 'content'")
        if self.function_call is not None and "tool_calls" in self.model_fields_set:
            raise ValueError("'function_call' and 'tool_calls' are two spellings of the same: keep 'tool_calls'")
        return self


def _old_tools(request: dict[str, Any]) -> list[Tool]:
    return [Tool(function=function) for function in request.get("functions", [])]


def _old_choice(request: dict[str, Any]) -> ToolChoice | None:
    wanted = request.get("function_call")
    return NamedTool(type="function", function=wanted) if isinstance(wanted, FunctionName) else wanted


class ChatRequest(SamplingFields):
    """A chat completion request."""

    no_effect: ClassVar[frozenset[str]] = SamplingFields.no_effect - {"include_reasoning", "parallel_tool_calls"}
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **SamplingFields.unsupported,
        "audio": (),
        "best_of": (1,),
        "chat_template": (),
        "modalities": (["text"],),
        "suffix": ("",),
        "web_search_options": (),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    """The conversation so far; the model's chat template turns it into the prompt."""
    max_tokens: Annotated[StrictInt, Field(ge=-1), AfterValidator(_not_zero)] | None = None
    """The older name of `max_completion_tokens`, which wins."""
    max_completion_tokens: Annotated[StrictInt, Field(ge=-1), AfterValidator(_not_zero)] | None = None
    """The most tokens of an answer; absent or -1: what the context holds."""
    logprobs: Flag = False
    """Give the log-probability of each token of the answer."""
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """So many of the likeliest tokens beside each; only with `logprobs`."""
    functions: Annotated[list[Function], Field(max_length=MAX_TOOLS), AfterValidator(told_apart)] = Field(
        default_factory=list
    )
    """The older spelling of `tools`; the call then comes back as `message.function_call`."""
    function_call: FunctionChoice | None = None
    """The older spelling of `tool_choice`: `none`, `auto`, or an object that names a function."""
    tools: Tools = Field(default_factory=_old_tools)
    """The functions that the model may call."""
    tool_choice: ToolChoice | None = Field(default_factory=_old_choice)
    """`none`, `auto`, `required`, or an object that names a function or some `allowed_tools`."""
    parallel_tool_calls: Flag = True
    """Whether one answer may call more than one function; with the older `functions` it never does."""
    include_reasoning: Flag = True
    """Give what the model thought, beside the content."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """A variable for the chat template; `none` also sets `enable_thinking` to false, the others to true."""
    add_generation_prompt: Flag = True
    """End the prompt with the opening of the assistant's next message."""
    continue_final_message: Flag = False
    """Go on with the last message, which must be the assistant's, instead of beginning a new one."""
    add_special_tokens: Flag = False
    """Put the model's begin token in front of the prompt; most chat templates do that themselves."""
    echo: Flag = False
    """Put the assistant's last message, if the conversation ends with one, in front of the answer."""
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    """Further variables for the chat template, such as `enable_thinking`."""

    @property
    def tool_use(self) -> ToolUse:
        """The tools, in whichever way they are spelled."""
        fields = [f"functions[{number}].parameters" for number in range(len(self.functions))]
        return ToolUse(self.tools, self.tool_choice, self.parallel_tool_calls and not self.functions, fields)

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

    @model_validator(mode="after")
    def _spells_tools_one_way(self) -> Self:
        for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
            if getattr(self, old) and new in self.model_fields_set:
                raise ValueError(f"'{old}' is the older spelling of '{new}', and both are here: keep '{new}'")
        wanted = self.function_call
        if isinstance(wanted, FunctionName) and wanted.name not in {function.name for function in self.functions}:
            raise ValueError(f"'function_call' names '{wanted.name}', which is not among the 'functions'")
        return self

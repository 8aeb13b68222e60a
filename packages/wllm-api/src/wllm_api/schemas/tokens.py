"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, StrictStr, model_validator

from wllm_api.schemas.base import Body, Flag, TokenId
from wllm_api.schemas.chat import ChatMessage
from wllm_api.schemas.tools import MAX_TOOLS, Tool


class TokenizeRequest(Body):
    """A text, or messages that go through the chat template first; `add_special_tokens` defaults to texts only."""

    model: StrictStr | None = None
    prompt: StrictStr | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    add_special_tokens: Flag | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    return_token_strs: Flag = False

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of 'prompt' and 'messages' is needed")
        return self


class DetokenizeRequest(Body):
    """Token ids to turn into text."""

    model: StrictStr | None = None
    tokens: list[TokenId]

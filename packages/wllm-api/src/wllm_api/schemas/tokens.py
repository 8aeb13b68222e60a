"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StrictStr, model_validator

from wllm_api.schemas.base import MAX_MESSAGES, Body, Flag, TokenId
from wllm_api.schemas.chat import ChatMessage, TemplateVariables
from wllm_api.schemas.tools import Tools

MAX_DECODED = 2**20


class TokenizeRequest(Body):
    """A text, or messages that go through the chat template first."""

    model: StrictStr | None = None
    """One of the served names; absent: the only model there is."""
    prompt: StrictStr | None = None
    """The text."""
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """The conversation."""
    tools: Tools = Field(default_factory=list)
    """The tools that the chat template shows."""
    add_special_tokens: Flag | None = None
    """Put the model's begin token in front; absent: for texts only."""
    add_generation_prompt: Flag = True
    """End the prompt with the opening of the assistant's next message."""
    continue_final_message: Flag = False
    """Leave the last message open, instead of beginning a new one."""
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    """Further variables for the chat template."""
    return_token_strs: Flag = False
    """Give the text of each token too."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of 'prompt' and 'messages' is needed")
        return self


class DetokenizeRequest(Body):
    """Token ids to turn into text."""

    model: StrictStr | None = None
    """One of the served names; absent: the only model there is."""
    tokens: Annotated[list[TokenId], Field(max_length=MAX_DECODED)]
    """Up to 1,048,576 ids."""

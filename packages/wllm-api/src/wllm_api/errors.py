"""The exceptions of wllm-api.

ApiError
├── TokenizerError (ValueError)      a tokenizer.json that cannot be used
├── InvalidText (ValueError)         a text that cannot be tokenised (a lone surrogate)
├── TemplateError (ValueError)       a chat template that cannot be parsed or refuses its messages
├── GrammarError (ValueError)        a form of the answer that cannot be kept
├── EngineUnavailable                no engine takes requests now; `state` says why
└── EngineDied                       the engine process ended and will not come back
"""

from __future__ import annotations

from typing import Literal

EngineState = Literal["loading", "ready", "restarting", "failed", "stopped"]


class ApiError(Exception):
    """Base of all errors of this package."""


class TokenizerError(ApiError, ValueError):
    """The model's tokenizer.json cannot be used."""


class InvalidText(ApiError, ValueError):
    """A text that no tokenizer takes, because it is not valid Unicode."""


class TemplateError(ApiError, ValueError):
    """A chat template that cannot be parsed, breaks a limit, or refuses its messages by `raise_exception`."""


class GrammarError(ApiError, ValueError):
    """A form of the answer that means nothing, cannot be kept, or takes too much; the message is for the client."""


class EngineUnavailable(ApiError):
    """The engine takes no requests at the moment; `state` is the engine's state."""

    def __init__(self, message: str, state: EngineState) -> None:
        super().__init__(message)
        self.state = state


class EngineDied(ApiError):
    """The engine process failed for good."""

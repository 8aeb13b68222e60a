"""The exceptions of wllm-sched.

SchedError
├── InvalidParameter (ValueError)    a sampling parameter is out of range
├── RequestRefused (ValueError)      a request that can never run
├── GrammarFailed (ValueError)       a grammar cannot be compiled or followed
│   └── TokenNotAllowed              an answer has left its grammar
├── EngineClosed                     work for an engine that is closed or dead
└── DeviceLost                       the GPU no longer works for this process
"""

from __future__ import annotations


class SchedError(Exception):
    """Base of all errors of this package."""


class InvalidParameter(SchedError, ValueError):
    """A request's parameter has a value that no model accepts; `parameter` names it."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter

    def __reduce__(self) -> tuple[type[InvalidParameter], tuple[str, str]]:
        return type(self), (self.parameter, str(self))


class RequestRefused(SchedError, ValueError):
    """A request that can never run here; `code` is OpenAI's error code where there is one."""

    def __init__(self, message: str, *, parameter: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.code = code


class GrammarFailed(SchedError, ValueError):
    """A grammar that cannot be compiled, or an answer that cannot go on under it: its request ends."""


class TokenNotAllowed(GrammarFailed):
    """A token that the grammar does not allow where the answer stands."""


class EngineClosed(SchedError):
    """The engine was closed, or its runner failed: it takes no more work."""


class DeviceLost(SchedError):
    """The engine's device works no more for this process, whose end is the only remedy."""

"""An answer's text taken apart: what is shown, what was thought, which functions are called with what.

One parser for each way that a family of models writes these, chosen from the model's chat template and tokens. Pure
functions of strings: no field of a request is known here.
"""

from wllm_api.tools.call_form import NotHeld, Tools, arguments_schema
from wllm_api.tools.choice import (
    REASONING_PARSERS,
    TOLD_IN_WORDS,
    TOOL_PARSERS,
    AnswerFormat,
    answer_format,
    shows_tools,
)
from wllm_api.tools.forced import calls_schema, one_call, some_calls
from wllm_api.tools.parser import AnswerParser, plain
from wllm_api.tools.sink import Piece

__all__ = [
    "REASONING_PARSERS",
    "TOLD_IN_WORDS",
    "TOOL_PARSERS",
    "AnswerFormat",
    "AnswerParser",
    "NotHeld",
    "Piece",
    "Tools",
    "answer_format",
    "arguments_schema",
    "calls_schema",
    "one_call",
    "plain",
    "shows_tools",
    "some_calls",
]

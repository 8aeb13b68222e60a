"""Text in, text out: chat template, tokenizer, incremental detokenizer, stop strings.

Pure functions of strings and token ids. Opens no file and imports no torch, transformers or fastapi: the server and
the offline `LLM` share it.
"""

from wllm_api.text.bad_words import resolve_bad_words
from wllm_api.text.detokenizer import Detokenizer
from wllm_api.text.infill import Infill
from wllm_api.text.output import OutputText, TextDelta
from wllm_api.text.template import ChatTemplate
from wllm_api.text.tokenizer import Tokenizer
from wllm_api.text.typed_tokens import ControlTokens, PromptText

__all__ = [
    "ChatTemplate",
    "ControlTokens",
    "Detokenizer",
    "Infill",
    "OutputText",
    "PromptText",
    "TextDelta",
    "Tokenizer",
    "resolve_bad_words",
]

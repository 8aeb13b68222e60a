"""`wllm chat`: talk to a model in the terminal; the model runs in this process."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from wllm.console import complain, say, settings_table
from wllm.llm import LLM
from wllm_api.errors import TemplateError
from wllm_sched import SamplingParams

HELP = """  /reset   forget the conversation
  /exit    leave (so do Ctrl+D and Ctrl+Z; Ctrl+C stops an answer)"""


def chat(settings: Mapping[str, Any], *, system: str | None, temperature: float | None, max_tokens: int | None) -> int:
    """Run the conversation until the user leaves; returns the exit code."""
    # Standard output is for the answers: they may go into a file.
    complain("loading the model")
    with LLM(**settings) as llm:
        if llm.model_info.task != "generate":
            complain(f"{llm.model_info.model} writes no text, so nobody can chat with it. `wllm serve` can serve it.")
            return 1
        complain(f"{settings_table(llm.model_info.settings)}\n{HELP}")
        defaults = dict(llm.model_info.default_sampling)
        if temperature is not None:
            defaults["temperature"] = temperature
        params = SamplingParams(**defaults, max_tokens=max_tokens)  # type: ignore[arg-type]
        opening = [{"role": "system", "content": system}] if system else []
        messages = list(opening)
        while (text := _ask()) is not None:
            if text == "/exit":
                break
            if text == "/reset":
                messages = list(opening)
            elif re.fullmatch(r"/[a-z?]+", text):  # other programs' /bye, /help and /? are no questions to the model
                complain(f"{text} is none of the commands:\n{HELP}")
            elif text:
                messages.append({"role": "user", "content": text})
                answer = _answer(llm, messages, params)
                if answer is None:
                    messages.pop()
                else:
                    messages.append({"role": "assistant", "content": answer})
    return 0


def _ask() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        say()
        return None


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str | None:
    """Show the answer as it comes; None when the model refused the conversation."""
    pieces: list[str] = []
    stream = llm.stream_chat(messages, params)
    try:
        for piece in stream:
            pieces.append(piece)
            say(piece, end="")
    except KeyboardInterrupt:
        stream.close()
    except (ValueError, TemplateError) as error:
        complain(f"{error}\n(/reset starts over)")
        return None
    say()
    return "".join(pieces)

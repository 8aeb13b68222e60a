"""Which parsers a model needs, from its chat template and its tokens; a family that is not known is never guessed.

A template that shows no tools is no family: `wllm_api.messages` tells such a model in words how to write a call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from wllm_api.tools.call_form import CallForm, NotHeld, Tools, any_of
from wllm_api.tools.calls import CallSyntax
from wllm_api.tools.deepseek import DeepSeek
from wllm_api.tools.gemma import Gemma
from wllm_api.tools.grammar_writer import GrammarWriter
from wllm_api.tools.harmony import MARKS as HARMONY_MARKS
from wllm_api.tools.harmony import HarmonyCalls, harmony
from wllm_api.tools.json_families import Hermes, ListAfterMark, Llama3, Mistral
from wllm_api.tools.parser import AnswerParser, marked, plain
from wllm_api.tools.thinking import THINKING, Thinking
from wllm_api.tools.xml_families import Glm, QwenCoder
from wllm_sched.grammar import Grammar, Opening

_HARMONY = HarmonyCalls()
_SYNTAXES: dict[str, CallSyntax] = {
    "deepseek": DeepSeek(),
    "functiongemma": Gemma(
        "<start_function_call>", "<end_function_call>", "<escape>", strays=("<start_function_response>",)
    ),
    "gemma4": Gemma("<|tool_call>", "<tool_call|>", '<|"|>', strays=("<|tool_response>",)),
    "glm": Glm(),
    "granite": ListAfterMark(),
    "hermes": Hermes(),
    "llama3": Llama3(),
    "mistral": Mistral(),
    "phi4": ListAfterMark(),
    "qwen3_coder": QwenCoder(),
}
# The first whose words are all in the template; those with few words of their own come last.
_TEMPLATE_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("deepseek", ("<｜tool▁call▁begin｜>",)),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("functiongemma", ("<start_function_call>",)),
    ("glm", ("<tool_call>", "<arg_key>")),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("granite", ("<|tool_call|>", "<|start_of_role|>")),
    ("phi4", ("<|tool_call|>",)),
    ("phi4", ("<|tool|>", "<|/tool|>")),
    ("hermes", ("<tool_call>", "</tool_call>")),
    ("llama3", ("<|start_header_id|>", "tools", '"parameters"')),
)
# How a model is asked to write calls when its own template does not tell it.
TOLD_IN_WORDS = "hermes"
TOOL_PARSERS = ("auto", "none", "harmony", *_SYNTAXES)
REASONING_PARSERS = ("auto", "none", "harmony", *THINKING)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a model writes its answers; a None means that it has no such thing, or none that is known."""

    tools: str | None
    reasoning: str | None

    @property
    def short_ids(self) -> bool:
        """Whether the chat template takes only ids of nine letters and digits."""
        return self.tools is not None and self.tools in _SYNTAXES and _SYNTAXES[self.tools].short_ids

    def marks(self, *, with_tools: bool) -> tuple[str, ...]:
        """Texts that may be special tokens and must reach the parser."""
        if "harmony" in (self.tools, self.reasoning):
            return HARMONY_MARKS
        syntax = _SYNTAXES[self.tools] if with_tools and self.tools is not None else None
        thinking = THINKING[self.reasoning][:2] if self.reasoning is not None else ()
        return (*(() if syntax is None else (*syntax.marks, *syntax.inner, *syntax.strays)), *thinking)

    def held_calls(
        self,
        prompt: str,
        tools: Tools,
        *,
        parallel: bool,
        token_of: Callable[[str], int | None],
        other: Grammar | None = None,
    ) -> Grammar | None:
        """What holds the calls of a free answer to the schemas, None where nothing does; raises `NotHeld`.

        `token_of` gives the id of a text that is one special token. With `other`, the answer is calls or that, and
        nothing is free.
        """
        form: CallForm | None = _HARMONY if self.tools == "harmony" else _SYNTAXES.get(self.tools or "")
        if form is None:
            return None
        thinking = THINKING[self.reasoning] if self.reasoning in THINKING else None
        writer = GrammarWriter(token_of)
        rule = form.rule(writer, tools, many=parallel)
        if other is not None:
            if not isinstance(form, CallSyntax):
                raise NotHeld("an answer of this model is calls, or of a form, but not either")
            calls = writer.several(writer.rule(writer.mark(form.marks[0]), rule), writer.blank, many=parallel)
            whole = writer.finished(writer.one_of([writer.grammar(other), calls]))
            return Grammar(whole, bounds_numbers=form.is_json and other.bounds_numbers, is_free=other.is_free)
        begins = form.begins(any_of(list(tools)))
        opening = Opening(
            begins=begins.begins,
            in_thought=begins.in_thought,
            at_start=begins.at_start,
            thought=None if thinking is None else (thinking.start, thinking.end),
            thought_begun=_in_thought(prompt, thinking),
            repeats=parallel,
        )
        return Grammar(writer.finished(rule), bounds_numbers=form.is_json, opening=opening)

    def parser(self, prompt: str, *, tools: Tools | None, special: frozenset[str]) -> Callable[[], AnswerParser]:
        """What makes a new parser for each answer to `prompt`; `special` are those of `marks` to be left out of texts.

        `tools` None: the request has none, so whatever looks like a call is content.
        """
        if "harmony" in (self.tools, self.reasoning):
            return lambda: AnswerParser(functools.partial(harmony, calls=tools is not None))
        syntax = _SYNTAXES[self.tools] if tools is not None and self.tools is not None else None
        thinking = THINKING[self.reasoning] if self.reasoning is not None else None
        if syntax is None and thinking is None:
            return lambda: AnswerParser(plain, exact=True)
        script = marked(syntax, thinking, tools or {}, in_thought=_in_thought(prompt, thinking), special=special)
        return lambda: AnswerParser(script)


def answer_format(template: str | None, *, tools: str = "auto", reasoning: str = "auto") -> AnswerFormat:
    """The format of a model with this chat template; `tools` and `reasoning` may name a parser instead."""
    text = template or ""
    if tools == "auto":
        chosen = next((name for name, words in _TEMPLATE_WORDS if all(word in text for word in words)), None)
        if chosen is None and text and not shows_tools(text):
            chosen = TOLD_IN_WORDS
    else:
        chosen = None if tools == "none" else tools
    if reasoning == "auto":
        thought = "harmony" if chosen == "harmony" else next((n for n, t in THINKING.items() if t.end in text), None)
    else:
        thought = None if reasoning == "none" else reasoning
    return AnswerFormat(chosen, thought)


def shows_tools(template: str | None) -> bool:
    """Whether a chat template can show the tools on offer."""
    return re.search(r"\btools\b", template or "") is not None


def _in_thought(prompt: str, thinking: Thinking | None) -> bool:
    return thinking is not None and prompt.rstrip().endswith((thinking.start, thinking.start + thinking.label))

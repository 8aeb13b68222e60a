"""Harmony, the format of gpt-oss: an answer is a row of messages, each with a channel and maybe a recipient."""

from __future__ import annotations

import re

from wllm_api.tools.call_form import Begins, CallForm, Tools, arguments_schema
from wllm_api.tools.calls import arguments_text
from wllm_api.tools.grammar_writer import GrammarWriter
from wllm_api.tools.sink import Sink
from wllm_api.tools.source import Read, Source

MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_FUNCTIONS = "functions."


class HarmonyCalls(CallForm):
    """A message to a function; its recipient stands before or behind the channel."""

    is_json = True

    def begins(self, names: str) -> Begins:
        """With a recipient in the header of a message."""
        header = r"(?:<\|start\|>assistant|<\|channel\|>(?:commentary|analysis))(?P<mark>\s+)"
        recipient = re.escape(f"to={_FUNCTIONS}")
        return Begins(header + recipient, header + recipient, rf"(?P<mark>\s*)(?={recipient})")

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """The rest of the message, up to the mark that ends it."""
        blank, space = writer.blank, writer.space
        channel = writer.rule(writer.mark("<|channel|>"), writer.one_of(['"commentary"', '"analysis"']))
        word = writer.rule(space, writer.one_of(['"json"', '"code"']))
        kind = writer.one_of([writer.rule(blank, writer.mark("<|constrain|>"), '"json"'), word])
        header = writer.rule(blank, f"{channel}?", f"{kind}?", blank, writer.mark("<|message|>"))
        calls = [
            writer.rule(writer.text(f"to={_FUNCTIONS}{name}"), header, writer.json(arguments_schema(parameters)))
            for name, parameters in tools.items()
        ]
        return writer.one_of(calls)


def harmony(source: Source, sink: Sink, *, calls: bool) -> Read[None]:
    """Read messages until the end; the prompt has given the first one's role already.

    The channel analysis is reasoning; a message to functions.NAME is a call (content without `calls`); everything else
    is content.
    """
    while True:
        header, mark = yield from source.text_until("<|message|>")
        if mark is None:
            if "<|" not in header:
                sink.content(header)  # a model that left the format: its words are the answer
            return
        words = header.replace("<|", " <|").replace("|>", "|> ").split()
        recipient = next((word.removeprefix("to=") for word in words if word.startswith("to=")), "")
        sink.section()
        if calls and recipient.startswith(_FUNCTIONS):
            sink.call(recipient.removeprefix(_FUNCTIONS))
            yield from _arguments(source, sink)
        else:
            emit = sink.reasoning if "analysis" in words else sink.content
            yield from source.until(_ENDS, emit)


def _arguments(source: Source, sink: Sink) -> Read[None]:
    yield from source.skip()
    if (yield from source.peek()) in ("{", "["):
        yield from source.json_value(sink.arguments)
        yield from source.text_until(*_ENDS)
    else:
        text, mark = yield from source.text_until(*_ENDS)
        if mark is not None or not source.cut:  # a limit may have come before the arguments did
            sink.arguments(arguments_text(text.strip()))

"""Harmony, the format of gpt-oss: an answer is a row of messages, each with a channel and maybe a recipient."""

from __future__ import annotations

from wllm_api.tools.calls import arguments_text
from wllm_api.tools.sink import Sink
from wllm_api.tools.source import Read, Source

MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_FUNCTIONS = "functions."


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
        text, _ = yield from source.text_until(*_ENDS)
        sink.arguments(arguments_text(text.strip()))

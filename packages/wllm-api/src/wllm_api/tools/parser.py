"""One sample's text, split into content, reasoning and calls.

Streamed and whole answers both go through this class, and the result does not depend on how the text is cut.
"""

from __future__ import annotations

from collections.abc import Callable

from wllm_api.tools.call_form import Tools
from wllm_api.tools.calls import CallSyntax
from wllm_api.tools.sink import Piece, Sink
from wllm_api.tools.source import Read, Source
from wllm_api.tools.thinking import Thinking

# Each unfinished call is read to the end of the text and then read again as text.
MAX_UNFINISHED = 16

Script = Callable[[Source, Sink], Read[None]]


class AnswerParser:
    """Runs `script` over text that comes in pieces; `exact` leaves out no blank."""

    def __init__(self, script: Script, *, exact: bool = False) -> None:
        self._source = Source()
        self._sink = Sink(exact=exact)
        self._reading = script(self._source, self._sink)

    def push(self, text: str) -> list[Piece]:
        """What became certain with `text`."""
        self._source.push(text)
        next(self._reading, None)
        return self._sink.take()

    def finish(self, *, cut: bool) -> list[Piece]:
        """The rest; `cut` when a length limit ended the answer."""
        self._source.end(cut=cut)
        next(self._reading, None)
        assert self._source.exhausted, "at the end a parser has read everything"
        self._sink.end()
        return self._sink.take()


def plain(source: Source, sink: Sink) -> Read[None]:
    """All text is content."""
    yield from source.until((), sink.content)


def marked(
    syntax: CallSyntax | None, thinking: Thinking | None, tools: Tools, *, in_thought: bool, special: frozenset[str]
) -> Script:
    """The script for families that mark thoughts and calls inside of the text.

    `in_thought`: the prompt has begun a thought already. `special` are marks that are special tokens, which are not
    shown where they mean nothing. A call may stand in a thought that was never closed.
    """
    hidden = special | frozenset(syntax.strays if syntax is not None else ())

    def script(source: Source, sink: Sink) -> Read[None]:
        thought = in_thought
        unfinished = 0
        while True:
            emit = sink.reasoning if thought else sink.content
            if syntax is not None and syntax.bare_mark and sink.only_blank and not thought:
                yield from _bare(syntax, source, sink, tools)
            marks = [*(syntax.marks if syntax is not None else ()), *hidden]
            if thinking is not None:
                marks.append(thinking.end if thought else thinking.start)
            mark = yield from source.until(list(dict.fromkeys(marks)), emit)
            if mark is None:
                return
            if thinking is not None and mark == thinking.end and thought:
                thought = False
                sink.section()
            elif thinking is not None and mark == thinking.start and not thought and sink.only_blank:
                thought = True
                sink.section()
                yield from source.literal(thinking.label)
            elif syntax is None or mark not in syntax.marks or unfinished == MAX_UNFINISHED:
                emit("" if mark in hidden else mark)
            else:
                place = source.keep()
                if (yield from syntax.read(mark, source, sink, tools, strict=thought)):
                    source.release()
                    sink.section()
                elif source.starved and source.cut:
                    source.discard()  # the beginning of a call that has no name yet
                    return
                else:
                    unfinished += source.starved
                    source.rewind(place)
                    emit("" if mark in hidden else mark)

    return script


def _bare(syntax: CallSyntax, source: Source, sink: Sink, tools: Tools) -> Read[None]:
    place = source.keep()
    yield from source.skip()
    if (yield from source.peek()) == syntax.bare_mark and (
        yield from syntax.read(syntax.bare_mark, source, sink, tools, strict=True)
    ):
        source.release()
        sink.section()
    else:
        source.rewind(place)

"""DeepSeek V3, R1 and V3.1: calls between tokens of their own."""

from __future__ import annotations

from wllm_api.tools.calls import CallSyntax, Tools, begin, json_arguments
from wllm_api.tools.sink import Sink
from wllm_api.tools.source import BLANK, Read, Source

_BEGIN = "<｜tool▁call▁begin｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_END = "<｜tool▁call▁end｜>"
_ALL_BEGIN = "<｜tool▁calls▁begin｜>"
_ALL_END = "<｜tool▁calls▁end｜>"


class DeepSeek(CallSyntax):
    """V3 writes function, separator, name and a fenced JSON block; V3.1 writes name, separator and JSON."""

    marks = (_BEGIN,)
    inner = (_SEPARATOR, _END)
    strays = (_ALL_BEGIN, _ALL_END)

    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """One call."""
        before, separator = yield from source.text_until(_SEPARATOR)
        if separator is None:
            return False
        name = before.strip()
        yield from source.skip()
        fenced = (yield from source.peek()) != "{"
        if fenced and name == "function":
            after, line_end = yield from source.text_until("\n", "```")
            name = after.strip()
            if line_end is None:
                return False
            yield from source.skip(BLANK + "`")
            yield from source.literal("json")
            yield from source.skip()
        if not name or (strict and name not in tools):
            return False
        begin(name, source, sink)
        yield from json_arguments(source, sink)
        yield from source.text_until(_END)
        return True

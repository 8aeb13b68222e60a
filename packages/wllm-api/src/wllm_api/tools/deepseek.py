"""DeepSeek V3, R1 and V3.1: calls between tokens of their own."""

from __future__ import annotations

from wllm_api.tools.call_form import Begins, Tools, arguments_schema, marked_begins
from wllm_api.tools.calls import CallSyntax, begin, json_arguments
from wllm_api.tools.grammar_writer import GrammarWriter
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
    is_json = True

    def begins(self, names: str) -> Begins:
        """Behind the mark."""
        return marked_begins(self.marks, rf"(?:function{_SEPARATOR}{names}\n|{names}{_SEPARATOR})")

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """One call, in either way."""
        separator, end = writer.mark(_SEPARATOR), writer.mark(_END)
        ways = []
        for name, parameters in tools.items():
            arguments = writer.json(arguments_schema(parameters))
            fence, fence_end = writer.text(f"{name}\n```json\n"), writer.text("\n```")
            ways.append(writer.rule(writer.text("function"), separator, fence, arguments, fence_end, end))
            ways.append(writer.rule(writer.text(name), separator, arguments, end))
        return writer.one_of(ways)

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

"""Gemma: calls in a notation of its own, call:name{key:value,...}, with a special token around each string."""

from __future__ import annotations

import json

from wllm_api.tools.call_form import Begins, Tools, arguments_schema, marked_begins
from wllm_api.tools.calls import CallSyntax, begin
from wllm_api.tools.gemma_rules import GemmaRules
from wllm_api.tools.grammar_writer import GrammarWriter
from wllm_api.tools.sink import Sink
from wllm_api.tools.source import BLANK, Read, Source, parsed

# Deeper values are no arguments of any tool, and each level costs stack.
MAX_DEPTH = 32


class Gemma(CallSyntax):
    """Gemma 4 and FunctionGemma, which differ in their tokens only."""

    def __init__(self, start: str, end: str, quote: str, strays: tuple[str, ...]) -> None:
        self.marks = (start,)
        self.inner = (end, quote)
        self.strays = strays
        self._end = end
        self._quote = quote

    def begins(self, names: str) -> Begins:
        """Behind the mark."""
        return marked_begins(self.marks, rf"call:{names}\{{")

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """One call."""
        rules = GemmaRules(writer, self._quote, self._read_name)
        calls = [
            writer.rule(writer.text(f"call:{name}"), rules.value(arguments_schema(parameters)), writer.mark(self._end))
            for name, parameters in tools.items()
        ]
        return writer.one_of(calls)

    def _read_name(self, name: str) -> str:
        # As `_members` does behind a bracket or a comma.
        key = name.lstrip(BLANK + ",").partition(":")[0].partition(self._end)[0]
        return "" if key.startswith("}") else self._unquoted(key)

    def _unquoted(self, key: str) -> str:
        return key.replace(self._quote, "").strip().strip('"')

    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """One call."""
        yield from source.skip()
        if not (yield from source.literal("call:")):
            return False
        name, brace = yield from source.text_until("{", self._end, "\n")
        name = name.strip()
        if brace != "{" or not name or (strict and name not in tools):
            return False
        begin(name, source, sink)
        sink.arguments("{")
        yield from self._members(source, sink, depth=1)
        yield from source.text_until(self._end)
        return True

    def _members(self, source: Source, sink: Sink, *, depth: int) -> Read[bool]:
        separator = ""
        while True:
            yield from source.skip(BLANK + ",")
            if (yield from source.literal("}")):
                sink.arguments("}")
                return True
            key, colon = yield from source.text_until(":", self._end)
            if colon != ":":
                return False
            key = self._unquoted(key)
            sink.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            if not (yield from self._value(source, sink, depth=depth)):
                return False

    def _items(self, source: Source, sink: Sink, *, depth: int) -> Read[bool]:
        separator = ""
        while True:
            yield from source.skip(BLANK + ",")
            if (yield from source.literal("]")):
                sink.arguments("]")
                return True
            if source.exhausted:
                return False
            sink.arguments(separator)
            separator = ", "
            if not (yield from self._value(source, sink, depth=depth)):
                return False

    def _value(self, source: Source, sink: Sink, *, depth: int) -> Read[bool]:
        yield from source.skip()
        if (yield from source.literal(self._quote)):
            text, closed = yield from source.text_until(self._quote)
            if closed is not None:
                sink.arguments(json.dumps(text, ensure_ascii=False))
            return closed is not None
        first = yield from source.peek()
        if first == '"':
            return (yield from source.json_value(sink.arguments))
        if first in ("{", "[") and first:
            if depth == MAX_DEPTH:
                return False
            yield from source.literal(first)
            sink.arguments(first)
            inside = self._members if first == "{" else self._items
            return (yield from inside(source, sink, depth=depth + 1))
        word = (yield from source.word(",}]<")).strip()
        if source.exhausted or not word:
            return False
        sink.arguments(word if word == "null" or parsed(word) is not None else json.dumps(word, ensure_ascii=False))
        return True

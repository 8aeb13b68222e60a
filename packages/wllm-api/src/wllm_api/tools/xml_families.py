"""Families that write each argument between tags, as plain text: its schema tells what JSON it becomes."""

from __future__ import annotations

import json
from collections.abc import Callable

from wllm_api.tools.call_form import Begins, Tools, any_of, marked_begins
from wllm_api.tools.calls import CallSyntax, begin, json_of, property_of
from wllm_api.tools.grammar_writer import GrammarWriter
from wllm_api.tools.plain_arguments import arguments_rule
from wllm_api.tools.sink import Sink
from wllm_api.tools.source import Read, Source


class ArgumentWriter:
    """Writes an arguments object, one member at a time."""

    def __init__(self, name: str, sink: Sink, tools: Tools) -> None:
        self._name = name
        self._sink = sink
        self._tools = tools
        self._before = "{"

    def add(self, key: str, text: str) -> None:
        """One argument in the words of the model."""
        value = json_of(text, property_of(self._tools, self._name, key))
        self._sink.arguments(f"{self._before}{json.dumps(key, ensure_ascii=False)}: {value}")
        self._before = ", "

    def close(self) -> None:
        """The object is complete."""
        self._sink.arguments("{}" if self._before == "{" else "}")


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'")


class QwenCoder(CallSyntax):
    """Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter></function></tool_call>."""

    marks = ("<tool_call>", "<function=")
    inner = ("</tool_call>",)

    def begins(self, names: str) -> Begins:
        """Behind the outer mark, or with the inner one."""
        head = rf"<function={names}>"
        mark = "(?P<mark><tool_call>|(?=<function=))"
        return Begins(f"{mark}(?:<function=)?", rf"{mark}\s*{head}")

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """One call, each value on lines of its own."""
        blank = writer.blank
        end = "\n</parameter>"

        def argument(name: str, value: Callable[[str], str]) -> str:
            return writer.rule(blank, writer.text(f"<parameter={name}>\n"), value(end))

        def read_name(name: str) -> str:
            return _unquoted(name.partition(">")[0])

        calls = []
        for name, parameters in tools.items():
            free = writer.rule(blank, '"<parameter="', writer.word(">\\n"), '">\\n"', writer.any_text(end))
            arguments = arguments_rule(writer, parameters, argument, any_argument=free, read_name=read_name)
            calls.append(writer.rule(writer.text(f"{name}>"), arguments))
        call = writer.one_of(calls)
        return writer.rule(blank, '"<function="', call, blank, '"</function>"', blank, writer.mark("</tool_call>"))

    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """One call; the outer tags may be missing."""
        if mark == "<tool_call>":
            yield from source.skip()
            if not (yield from source.literal("<function=")):
                return False
        name, end = yield from source.text_until(">", "\n")
        name = _unquoted(name)
        if end != ">" or not name or (strict and name not in tools):
            return False
        begin(name, source, sink)
        if not (yield from self._arguments(ArgumentWriter(name, sink, tools), source)):
            return True
        yield from source.skip()
        yield from source.literal("</tool_call>")
        return True

    def _arguments(self, writer: ArgumentWriter, source: Source) -> Read[bool]:
        while True:
            _, tag = yield from source.text_until("<parameter=", "</function>", "</tool_call>")
            if tag is None:
                return False
            if tag != "<parameter=":
                writer.close()
                return tag == "</function>"
            key, end = yield from source.text_until(">")
            text, closed = yield from source.text_until("</parameter>")
            if end is None or closed is None:
                return False
            # The template puts each value on lines of its own.
            writer.add(_unquoted(key), text.removeprefix("\n").removesuffix("\n"))


class Glm(CallSyntax):
    """GLM 4.5 and later: <tool_call>name, then <arg_key> and <arg_value> in turns."""

    marks = ("<tool_call>",)
    inner = ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    strays = ("<|observation|>",)

    def begins(self, names: str) -> Begins:
        """Behind the mark."""
        return marked_begins(self.marks, rf"{names}\s*(?:\n|{any_of(('<arg_key>', '</tool_call>'))})")

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """One call."""
        blank = writer.blank
        opened, closed, before = (writer.mark(mark) for mark in ("<arg_key>", "</arg_key>", "<arg_value>"))
        end = "</arg_value>"

        def argument(name: str, value: Callable[[str], str]) -> str:
            return writer.rule(opened, writer.text(name), closed, blank, before, value(end), blank)

        def read_name(name: str) -> str:
            return name.partition("</arg_key>")[0].strip()

        calls = []
        for name, parameters in tools.items():
            free = writer.rule(opened, writer.word("<>\\n"), closed, blank, before, writer.any_text(end), blank)
            arguments = arguments_rule(writer, parameters, argument, any_argument=free, read_name=read_name)
            calls.append(writer.rule(writer.text(name), blank, arguments))
        return writer.rule(blank, writer.one_of(calls), writer.mark("</tool_call>"))

    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """One call."""
        yield from source.skip()
        name, tag = yield from source.text_until("<arg_key>", "</tool_call>", "\n")
        name = name.strip()
        if tag is None or not name or " " in name or (strict and name not in tools):
            return False
        begin(name, source, sink)
        writer = ArgumentWriter(name, sink, tools)
        while tag is not None:
            if tag == "</tool_call>":
                writer.close()
                return True
            if tag == "<arg_key>":
                key, end = yield from source.text_until("</arg_key>")
                _, opened = yield from source.text_until("<arg_value>")
                text, closed = yield from source.text_until("</arg_value>")
                if end is None or opened is None or closed is None:
                    return True
                writer.add(key.strip(), text)
            _, tag = yield from source.text_until("<arg_key>", "</tool_call>")
        return True

"""Families that write a call as a JSON object with a name and arguments."""

from __future__ import annotations

from wllm_api.tools.call_form import Begins, Tools, arguments_schema, marked_begins
from wllm_api.tools.calls import CallSyntax, begin, json_arguments, json_calls, json_head, json_rule
from wllm_api.tools.grammar_writer import GrammarWriter
from wllm_api.tools.sink import Sink
from wllm_api.tools.source import BLANK, Read, Source


class Hermes(CallSyntax):
    """Hermes, Qwen 2.5 and 3, Granite 4 and many others: <tool_call>{...}</tool_call>."""

    marks = ("<tool_call>",)
    inner = ("</tool_call>",)
    is_json = True

    def begins(self, names: str) -> Begins:
        """Behind the mark."""
        return marked_begins(self.marks, json_head(names))

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """One block with one call."""
        blank = writer.blank
        return writer.rule(blank, json_rule(writer, tools), blank, writer.mark("</tool_call>"))

    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """One block, in practice with one call."""
        if not (yield from json_calls(source, sink, allowed=tools if strict else None, between=BLANK)):
            return False
        # What stands between a call and its end mark (a bracket too many, often) is no one's text.
        yield from source.text_until("</tool_call>")
        return True


class Llama3(CallSyntax):
    """Llama 3: bare JSON in place of an answer, or after <|python_tag|>; several are parted by semicolons."""

    marks = ("<|python_tag|>",)
    bare_mark = "{"
    strays = ("<|eom_id|>", "<|eot_id|>")
    is_json = True

    def begins(self, names: str) -> Begins:
        """Behind the mark, or with a call that has come as far as its arguments."""
        certain = rf'{json_head(names)}\s*,\s*"(?:parameters|arguments)"'
        return marked_begins(self.marks, json_head(names))._replace(at_start=rf"(?P<mark>\s*)(?={certain})")

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """One call or several."""
        blank = writer.blank
        return writer.rule(blank, writer.several(json_rule(writer, tools), blank, '";"', blank, many=many))

    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """All calls of one answer; bare JSON counts as a call when it names a tool and has arguments."""
        allowed = tools if strict else None
        bare = mark == self.bare_mark
        return (yield from json_calls(source, sink, allowed=allowed, between=BLANK + ";", whole=bare))


class Mistral(CallSyntax):
    """Mistral: [TOOL_CALLS] and a list of objects, or since 2025 [TOOL_CALLS]name[ARGS]{...} for each call."""

    marks = ("[TOOL_CALLS]",)
    inner = ("[ARGS]", "[CALL_ID]")
    short_ids = True
    is_json = True

    def begins(self, names: str) -> Begins:
        """Behind the mark."""
        return marked_begins(self.marks, rf"\[?\s*{json_head(names)}|{names}\s*(?:\{{|\[(?:ARGS|CALL_ID)\])")

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """The list, or one call with its name in front."""
        blank = writer.blank
        calls = writer.several(json_rule(writer, tools), blank, '","', blank, many=many)
        call_id = writer.rule(writer.mark("[CALL_ID]"), writer.word(r"\[\]{}"))
        between = f"({call_id}? {writer.mark('[ARGS]')} {blank})?"
        named = [
            writer.rule(writer.text(name), between, writer.json(arguments_schema(parameters)))
            for name, parameters in tools.items()
        ]
        listed = writer.rule('"["', blank, calls, blank, '"]"')
        return writer.rule(blank, writer.one_of([listed, *named]))

    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """The list, or one call."""
        yield from source.skip()
        allowed = tools if strict else None
        if (yield from source.peek()) in ("[", "{"):
            if not (yield from json_calls(source, sink, allowed=allowed, between=BLANK + "[,")):
                return False
            yield from source.skip()
            yield from source.literal("]")
            return True
        name, end = yield from source.text_until("[CALL_ID]", "[ARGS]", "{", "\n\n")
        name = name.strip()
        if end in (None, "\n\n") or not name or (strict and name not in tools):
            return False
        begin(name, source, sink)
        if end == "[CALL_ID]":
            # Its own id is not used: every family's calls get ids of the same making.
            yield from source.text_until("[ARGS]")
        if end == "{":
            yield from source.json_value(sink.arguments, opened="{")
        else:
            yield from source.skip()
            yield from json_arguments(source, sink)
        return True


class ListAfterMark(CallSyntax):
    """Granite 3 and Phi-4-mini: <|tool_call|> and a list of objects."""

    marks = ("<|tool_call|>", "<tool_call>", "functools[")
    strays = ("<|/tool_call|>",)
    is_json = True

    def begins(self, names: str) -> Begins:
        """Behind the mark, of which one opens the list too."""
        return marked_begins(self.marks, rf"\[?\s*{json_head(names)}")

    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """The list."""
        blank = writer.blank
        calls = writer.several(json_rule(writer, tools), blank, '","', blank, many=many)
        return writer.rule(blank, '"["?', blank, calls, blank, '"]"')

    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """The list, or a single object."""
        if not (yield from json_calls(source, sink, allowed=tools if strict else None, between=BLANK + "[,")):
            return False
        yield from source.skip()
        yield from source.literal("]")
        yield from source.skip()
        yield from source.literal("<|/tool_call|>" if mark == "<|tool_call|>" else "</tool_call>")
        return True

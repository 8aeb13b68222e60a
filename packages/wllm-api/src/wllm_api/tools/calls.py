"""Reading one call that is written as JSON, which most families have in common."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping

from wllm_api.tools.call_form import CallForm, Tools, arguments_schema
from wllm_api.tools.grammar_writer import GrammarWriter
from wllm_api.tools.sink import Sink
from wllm_api.tools.source import BLANK, Read, Source, parsed

_ARGUMENTS = ("arguments", "parameters")


class CallSyntax(CallForm):
    """How a family writes calls; one object for all requests.

    `marks` begin a call anywhere; the character `bare_mark` begins one where nothing was shown before, and is then left
    to `read`. `inner` are the marks that `read` looks for. `strays` may stand around calls and are never shown.
    """

    marks: tuple[str, ...] = ()
    bare_mark = ""
    inner: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    short_ids = False

    @abstractmethod
    def read(self, mark: str, source: Source, sink: Sink, tools: Tools, *, strict: bool) -> Read[bool]:
        """Read on after `mark`; False when no call is there. `strict` takes no other names than those of `tools`."""


def json_head(names: str) -> str:
    """An expression for the beginning of a call to one of `names`, up to its name."""
    return rf'\{{\s*"name"\s*:\s*"{names}"'


def json_rule(writer: GrammarWriter, tools: Tools) -> str:
    """The rule for one call that is JSON."""
    blank = writer.blank
    key = writer.one_of([writer.text(f'"{key}"') for key in _ARGUMENTS])
    known = [
        writer.rule(
            writer.text(f'"{name}"'), blank, '","', blank, key, blank, '":"', blank,
            writer.json(arguments_schema(parameters)),
        )
        for name, parameters in tools.items()
    ]  # fmt: skip
    name = writer.text('"name"')
    return writer.rule('"{"', blank, name, blank, '":"', blank, writer.one_of(known), blank, '"}"')


def json_calls(source: Source, sink: Sink, *, allowed: Tools | None, between: str, whole: bool = False) -> Read[bool]:
    """Read calls with the characters of `between` in between, as many as there are; False when there is none."""
    place = source.keep()
    yield from source.skip(between)
    if not (yield from json_call(source, sink, allowed=allowed, whole=whole)):
        source.rewind(place)
        return False
    while True:
        place = source.keep()
        yield from source.skip(between)
        if not (yield from json_call(source, sink, allowed=allowed, whole=whole)):
            source.rewind(place)
            return True


def begin(name: str, source: Source, sink: Sink) -> None:
    """A call is certain: nothing of it will be read again."""
    source.release()
    sink.call(name)


def json_call(source: Source, sink: Sink, *, allowed: Tools | None, whole: bool = False) -> Read[bool]:
    """Read {"name": ..., "arguments": ...}; False when it is no call.

    `allowed` has the only names that count (None: any). `whole` asks for arguments too, which plain JSON rarely has.
    """
    if not (yield from source.literal("{")):
        return False
    name: str | None = None
    early: str | None = None
    begun = closed = False
    while True:
        yield from source.skip(BLANK + ",")
        if closed := (yield from source.literal("}")):
            break
        key = yield from source.json_text()
        yield from source.skip()
        if not isinstance(key, str) or not (yield from source.literal(":")):
            break
        yield from source.skip()
        if key in _ARGUMENTS and name is not None and not begun:
            begun = True
            begin(name, source, sink)
            yield from json_arguments(source, sink)
            continue
        pieces: list[str] = []
        if not (yield from source.json_value(pieces.append)):
            break
        if key == "name" and not begun:
            value = parsed("".join(pieces))
            if not isinstance(value, str) or not value or (allowed is not None and value not in allowed):
                return False
            name = value
        elif key in _ARGUMENTS:
            early = "".join(pieces)
    if begun:
        return True
    if name is None or (early is None and whole) or not (closed or source.exhausted):
        return False
    begin(name, source, sink)
    sink.arguments(arguments_text(early) if early is not None else "{}" if closed else "")
    return True


def json_arguments(source: Source, sink: Sink) -> Read[bool]:
    """Give out an arguments object as it comes; False when it has no end."""
    if (yield from source.peek()) in ("{", "["):
        return (yield from source.json_value(sink.arguments))
    pieces: list[str] = []
    complete = yield from source.json_value(pieces.append)
    text = "".join(pieces)
    # A string or a word that was cut has no beginning that could be shown as arguments.
    if not source.exhausted or text == "null" or parsed(text) is not None:
        sink.arguments(arguments_text(text))
    return complete


def arguments_text(text: str) -> str:
    """Arguments as clients expect them: some models write null for none, or the object as a JSON string."""
    value = parsed(text)
    if value is None:
        return "{}" if text in ("", "null") else text
    return value if isinstance(value, str) and isinstance(parsed(value), dict) else text


def json_of(text: str, schema: Mapping[str, object]) -> str:
    """The JSON of an argument that a model wrote as plain text, by the type that its schema asks for."""
    wanted = schema.get("type")
    types = wanted if isinstance(wanted, list) else [wanted]
    if "null" in types and text.strip().lower() in ("null", "none"):
        return "null"
    if "string" in types or (wanted is None and text[:1] not in '{["' and not _is_literal(text)):
        return json.dumps(text, ensure_ascii=False)
    literal = {"True": "true", "False": "false", "None": "null"}.get(text.strip(), text.strip())
    return literal if parsed(literal) is not None or literal == "null" else json.dumps(text, ensure_ascii=False)


def _is_literal(text: str) -> bool:
    value = parsed(text.strip())
    return isinstance(value, bool | int | float)


def property_of(tools: Tools, name: str, key: str) -> Mapping[str, object]:
    """The schema of one argument; empty when the tool does not have it."""
    properties = tools.get(name, {}).get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}

"""The grammar of Gemma's notation of arguments: {key:value,...}, with a mark around each string."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wllm_api.tools.call_form import NotHeld, check_names
from wllm_api.tools.grammar_writer import GrammarWriter

Schema = Mapping[str, object]

_NOTES = frozenset({"$comment", "$id", "$schema", "default", "description", "examples", "strict", "title"})
_HELD: dict[str, frozenset[str]] = {
    "string": frozenset({"type", "enum", "const"}),
    "array": frozenset({"type", "items"}),
    "object": frozenset({"type", "properties", "required", "additionalProperties"}),
}


class GemmaRules:
    """Rules for the values that match a schema; raises `NotHeld` for one that says more than the notation can keep.

    `read_name` is what the parser makes of the name of a member.
    """

    def __init__(self, writer: GrammarWriter, quote: str, read_name: Callable[[str], str]) -> None:
        self._writer = writer
        self._quote = quote
        self._read_name = read_name
        self._any: str | None = None

    def value(self, schema: Schema) -> str:
        """Any value of a schema."""
        kind = schema.get("type")
        if not schema.keys() - _NOTES:
            return self._anything()
        if not isinstance(kind, str):
            raise NotHeld("a value without one 'type' is not held to in this model's notation of calls")
        if kind not in _HELD:
            return self._writer.json(schema)
        if odd := schema.keys() - _HELD[kind] - _NOTES:
            raise NotHeld(f"the keyword {min(odd)!r} of {kind} is not held to in this model's notation of calls")
        if kind == "object":
            return self.members(schema)
        return self._string(schema) if kind == "string" else self._list(schema.get("items"))

    def members(self, schema: Schema) -> str:
        """An object, with its members in the order of their names, in which the templates show them too."""
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        assert isinstance(properties, Mapping) and isinstance(required, list), "the form of the schema was checked"
        check_names(properties, self._read_name)
        if unknown := [name for name in required if name not in properties]:
            raise NotHeld(f"{unknown[0]!r} is required and has no schema of its own")
        writer = self._writer
        if not properties and schema.get("additionalProperties") is not False:
            return self._free_members(self._anything())
        later, start = "", ""  # what may follow some member, and what may stand first
        for name, member in sorted(properties.items(), key=lambda item: str(item[0]).lower(), reverse=True):
            value = self.value(member) if isinstance(member, Mapping) else self._anything()
            item = writer.rule(writer.text(f"{name}:"), value)
            first = writer.rule(item, later) if later else item
            if name in required:
                start, later = first, f'"," {item} {later}'
            else:
                start = writer.one_of([first, start]) if start else f"{first}?"
                later = f'("," {item})? {later}'
        return writer.rule('"{"', start, '"}"')

    def _string(self, schema: Schema) -> str:
        writer, quote = self._writer, self._writer.mark(self._quote)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(values, list):
            return writer.rule(quote, writer.any_text(self._quote))
        choices = [writer.text(value) for value in values if isinstance(value, str) and value]
        if len(choices) != len(values):
            raise NotHeld("a choice of no text is not held to in this model's notation of calls")
        if odd := [value for value in values if self._quote in str(value)]:
            raise NotHeld(f"the choice {odd[0]!r:.80} cannot be told in this model's notation of calls")
        return writer.rule(quote, writer.one_of(choices), quote)

    def _list(self, items: object) -> str:
        item = self.value(items) if isinstance(items, Mapping) else self._anything()
        return self._writer.rule(f'"[" ({item} ("," {item})*)? "]"')

    def _free_members(self, value: str) -> str:
        member = self._writer.rule(self._writer.word(":,<>{}"), '":"', value)
        return self._writer.rule(f'"{{" ({member} ("," {member})*)? "}}"')

    def _anything(self) -> str:
        if self._any is None:
            writer = self._writer
            simple = writer.json({"type": ["number", "boolean", "null"]})
            text = self._string({})
            self._any = writer.recursive(
                lambda value: f'{simple} | {text} | "[" ({value} ("," {value})*)? "]" | {self._free_members(value)}'
            )
        return self._any

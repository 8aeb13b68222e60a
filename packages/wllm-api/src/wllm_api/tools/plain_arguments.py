"""Arguments that a model writes as text between tags, held to their schemas as far as that can be said of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wllm_api.tools.call_form import NotHeld, check_names
from wllm_api.tools.grammar_writer import GrammarWriter

Schema = Mapping[str, object]

_OF_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
_NOTES = frozenset({"$comment", "$id", "$schema", "default", "description", "examples", "strict", "title"})
_OF_TEXT = frozenset({"type", "enum", "const"})


def arguments_rule(
    writer: GrammarWriter,
    parameters: Schema,
    argument: Callable[[str, Callable[[str], str]], str],
    *,
    any_argument: str,
    read_name: Callable[[str], str],
) -> str:
    """The rule for all arguments, in the order of the schema.

    `argument` makes the rule for the one of a name, from a function that makes the rule for its value and the text that
    ends it. `any_argument` is the rule for one of any name, where the schema names none. `read_name` is what the parser
    makes of a name. Raises `NotHeld`.
    """
    if odd := parameters.keys() - _OF_OBJECT - _NOTES:
        raise NotHeld(f"the keyword {min(odd)!r} of the arguments is not held to in this model's notation of calls")
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    assert isinstance(properties, Mapping) and isinstance(required, list), "the form of the schema was checked"
    check_names(properties, read_name)
    if unknown := [name for name in required if name not in properties]:
        raise NotHeld(f"{unknown[0]!r} is required and has no schema of its own")
    if not properties and parameters.get("additionalProperties") is not False:
        return f"{any_argument}*"
    shared = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
    parts = []
    for name, schema in properties.items():
        held = _value(writer, {**shared, **schema} if isinstance(schema, Mapping) else shared)
        parts.append(argument(name, held) + ("" if name in required else "?"))
    return writer.rule(*parts) if parts else ""


def _value(writer: GrammarWriter, schema: Schema) -> Callable[[str], str]:
    # As `json_of` reads it back: what may be a string is text, all else is JSON.
    wanted = schema.get("type")
    types = wanted if isinstance(wanted, list) else [wanted]
    if "string" not in types:
        rule = writer.json(schema)
        return lambda end: f"{rule} {writer.mark(end)}"
    if odd := schema.keys() - _OF_TEXT - _NOTES - {"$defs", "definitions"}:
        raise NotHeld(f"the keyword {min(odd)!r} of a string is not held to in this model's notation of calls")
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return writer.any_text
    choices = [value for value in values if isinstance(value, str)] + ["null"] * ("null" in types and None in values)
    if "" in choices or not choices:
        raise NotHeld("a choice of no text is not held to in this model's notation of calls")
    rule = writer.one_of([writer.text(choice) for choice in choices])

    def chosen(end: str) -> str:
        if odd := [choice for choice in choices if end.strip() in choice]:
            raise NotHeld(f"the choice {odd[0]!r:.80} cannot be told in this model's notation of calls")
        return f"{rule} {writer.mark(end)}"

    return chosen

"""From a request's fields to the grammar of its answers: `response_format`, `structured_outputs`, `guided_*`.

A request has one form or none. Whatever asks for a form that cannot be kept is refused, and names the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from wllm_api.errors import GrammarError
from wllm_api.grammars import Constraint
from wllm_api.grammars.constraint import Kind
from wllm_api.http_errors import InvalidRequest, Unsupported
from wllm_api.model import ServedModel
from wllm_api.schemas.sampling import SamplingFields
from wllm_sched.grammar import Grammar

_KINDS: tuple[Kind, ...] = ("json", "regex", "choice", "grammar", "json_object")


async def grammar_for(fields: SamplingFields, model: ServedModel, others: Sequence[Constraint] = ()) -> Grammar | None:
    """The grammar that every answer must match, None for free text; raises `InvalidRequest`.

    `others` are forms that other fields of the request stand for.
    """
    wanted = [
        *others,
        *_of_format(fields.response_format, "response_format"),
        *_of_outputs(fields.structured_outputs),
        *_of_guided(fields),
    ]
    if not wanted:
        return None
    constraint = wanted[0]
    if len(wanted) > 1:
        raise InvalidRequest(
            f"'{constraint.param}' and '{wanted[1].param}' both ask for a form of the answer. Keep one of them.",
            param=wanted[1].param,
        )
    model.require_tokenizer(constraint.param)
    try:
        return await model.grammars.check(constraint)
    except GrammarError as error:
        raise InvalidRequest(f"'{constraint.param}' cannot be used: {error}", param=constraint.param) from None


def flat_format(value: Mapping[str, object] | None, param: str) -> list[Constraint]:
    """The form that the newer APIs' `format` objects ask for, if any: as `response_format`, but less nested."""
    return list(_of_format(value, param, flat=True))


def _of_format(value: Mapping[str, object] | None, param: str, *, flat: bool = False) -> Iterator[Constraint]:
    if value is None or value.get("type") == "text":
        return
    kind = value.get("type")
    if kind == "json_object" and value.get("schema") is None:
        yield Constraint("json_object", None, param)
    elif kind in ("json_object", "json_schema"):
        # Some servers take a schema with 'json_object' too, and their clients count on it.
        holder = value if flat or kind == "json_object" else value.get("json_schema")
        if not isinstance(holder, Mapping) or holder.get("schema") is None:
            where = "a 'schema'" if flat else "an object 'json_schema' with a 'schema' in it"
            raise InvalidRequest(f"'{param}' of type 'json_schema' needs {where}.", param=param)
        schema = holder["schema"]
        if isinstance(schema, str):
            raise InvalidRequest(
                f"'{param}' has a 'schema' that is a string, and must be an object. Send the schema itself.",
                param=param,
            )
        yield Constraint("json", schema, param)
    elif kind == "structural_tag":
        raise Unsupported(f"'{param}' of type 'structural_tag' is not supported.", param=param)
    else:
        raise InvalidRequest(
            f"'{param}' has the unknown type {str(kind)[:60]!r}. Use 'text', 'json_object' or 'json_schema'.",
            param=param,
        )


def _of_outputs(value: Mapping[str, object] | None) -> Iterator[Constraint]:
    if value is None:
        return
    param = "structured_outputs"
    compact = value.get("disable_any_whitespace") or False
    given = []
    for name, one in value.items():
        # There is one way to hold to a form, so none to fall back to.
        if one is None or name in ("disable_fallback", "disable_any_whitespace"):
            continue
        if name not in _KINDS:
            if one is False:
                continue
            raise Unsupported(f"'{param}.{name[:60]}' is not supported. Leave it out.", param=param)
        if name == "json_object" and one is not True:
            if one is False:
                continue
            raise InvalidRequest(f"'{param}.json_object' must be true or false.", param=param)
        given.append(name)
    if len(given) != 1 or not isinstance(compact, bool):
        raise InvalidRequest(
            f"'{param}' must have exactly one of {', '.join(_KINDS)}, but has {', '.join(given) or 'none'}; "
            "'disable_any_whitespace' is true or false.",
            param=param,
        )
    for kind in _KINDS:
        if kind in given:
            yield Constraint(kind, value[kind], param, compact)


def _of_guided(fields: SamplingFields) -> Iterator[Constraint]:
    # vLLM's older spellings.
    if fields.guided_json is not None:
        yield Constraint("json", fields.guided_json, "guided_json")
    if fields.guided_regex is not None:
        yield Constraint("regex", fields.guided_regex, "guided_regex")
    if fields.guided_choice is not None:
        yield Constraint("choice", fields.guided_choice, "guided_choice")
    if fields.guided_grammar is not None:
        yield Constraint("grammar", fields.guided_grammar, "guided_grammar")

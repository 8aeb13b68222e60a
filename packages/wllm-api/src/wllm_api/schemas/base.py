"""The ground rules of every request body.

A null is the same as an absent field, at every level. A field is done (declared), without effect by design (listed),
refused (listed with the values that ask for nothing), or unknown: then it passes and is named to the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictInt,
    model_validator,
)

from wllm_api.http_errors import InvalidRequest, Unsupported

Flag = StrictBool
Count = Annotated[StrictInt, Field(ge=0)]
TokenId = Annotated[StrictInt, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
MAX_DEPTH = 200
# Each takes time of the event loop, where everyone waits, before the model's context can refuse them.
MAX_MESSAGES = 16_384
MAX_UNKNOWN = 1_000


def _not_too_deep(value: dict[str, Any]) -> dict[str, Any]:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        ]
        if not level:
            return value
    raise ValueError(f"is nested more than {MAX_DEPTH} levels deep. Send a flatter object")


# An object that answers hold too: what can be read can be nested a little deeper than what can be written.
Echoed = Annotated[dict[str, Any], AfterValidator(_not_too_deep)]


def _fail_fast(schema: object) -> None:
    # A report of a million wrong entries would take seconds in which the server does nothing else.
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict", "tuple", "set"):
            schema["fail_fast"] = True
        for part in schema.values():
            _fail_fast(part)
    elif isinstance(schema, list):
        for part in schema:
            _fail_fast(part)


class Part(BaseModel):
    """A JSON object inside a request.

    `no_effect` fields are taken and change nothing; `unsupported` maps a field to the values of it that ask for
    nothing and therefore pass.
    """

    no_effect: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    # The text below a field is its description in /openapi.json.
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> Any:
        """The schema, with lists and objects that are given up at their first wrong entry (pydantic)."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: object) -> object:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


class Body(Part):
    """A whole request body."""

    @classmethod
    def ignored(cls, data: Mapping[str, object]) -> list[str]:
        """Names in `data` that this schema does not know; those inside of objects come later, as "messages.NAME".

        Raises `InvalidRequest` for more than a client can mean.
        """
        names: dict[str, None] = {}
        for name in _unknown((cls,), data, ""):
            names[name] = None
            if len(names) > MAX_UNKNOWN:
                shown = ascii(next(iter(names))[:64])
                raise InvalidRequest(
                    f"The request has more than {MAX_UNKNOWN:,} fields that this server does not know, {shown} for "
                    "one. Leave them out.",
                    param=shown[1:-1],
                )
        return sorted(names, key=lambda name: name.count("."))

    @classmethod
    def refuse_unsupported(cls, data: Mapping[str, object]) -> None:
        """Raise `Unsupported` for the first field that asks for something this server does not do."""
        for name, harmless in cls.unsupported.items():
            value = data.get(name)
            if value is not None and not any(type(value) is type(one) and value == one for one in harmless):
                raise Unsupported(f"'{name}' is not supported by this server. Leave it out.", param=name)


@cache
def _known(schema: type[Part]) -> Mapping[str, tuple[type[Part], ...]]:
    # Each name that the schema knows, with the kinds of objects that may be there.
    inside = {name: tuple(_parts(field.annotation)) for name, field in schema.model_fields.items()}
    return dict.fromkeys((*schema.no_effect, *schema.unsupported), ()) | inside


def _parts(annotation: object) -> Iterator[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def _unknown(schemas: tuple[type[Part], ...], value: object, path: str) -> Iterator[str]:
    for entry in value if isinstance(value, list) else [value]:
        for name, one in entry.items() if isinstance(entry, dict) else ():
            kinds = [known[name] for schema in schemas if name in (known := _known(schema))]
            inner = tuple(part for parts in kinds for part in parts)
            if inner:
                yield from _unknown(inner, one, f"{path}{name}.")
            elif not kinds and one is not None and not (path and one == []):
                # Clients send messages back as they got them, with empty lists of what was not there.
                yield path + name

"""The ground rules of every request body.

A null is the same as an absent field, at every level. A field is done (declared), without effect by design (listed),
refused (listed with the values that ask for nothing), or unknown: then it passes and is named to the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StrictBool, StrictInt, model_validator

from wllm_api.http_errors import Unsupported

Flag = StrictBool
Count = Annotated[StrictInt, Field(ge=0)]
TokenId = Annotated[StrictInt, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]


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
    """A JSON object inside a request."""

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
    """A whole request body.

    `no_effect` fields are taken and change nothing; `unsupported` maps a field to the values of it that ask for
    nothing and therefore pass.
    """

    no_effect: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @classmethod
    def ignored(cls, data: Mapping[str, object]) -> list[str]:
        """Names in `data` that this schema does not know."""
        known = cls.model_fields.keys() | cls.no_effect | cls.unsupported.keys()
        return [name for name, value in data.items() if name not in known and value is not None]

    @classmethod
    def refuse_unsupported(cls, data: Mapping[str, object]) -> None:
        """Raise `Unsupported` for the first field that asks for something this server does not do."""
        for name, harmless in cls.unsupported.items():
            value = data.get(name)
            if value is not None and not any(type(value) is type(one) and value == one for one in harmless):
                raise Unsupported(f"'{name}' is not supported by this server. Leave it out.", param=name)

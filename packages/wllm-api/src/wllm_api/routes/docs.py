"""GET /docs: every route with every field of its body, made from `/openapi.json`. One page without scripts."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, Template

router = APIRouter()

# The page needs nothing from anywhere, so nothing is allowed.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The description of the API for people."""
    page = _template().render(api=request.app.openapi(), type_of=type_of, methods=("get", "post", "delete"))
    return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": POLICY})


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((files(__package__) / "docs.html").read_text(encoding="utf-8"))


def type_of(schema: dict[str, Any]) -> list[tuple[str, str | None]]:
    """A field's type as pieces of text, each with the name of the schema that it links to, if any."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [(name, name)]
    if "enum" in schema or "const" in schema:
        return [(" | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")])), None)]
    for branches in ("anyOf", "oneOf", "allOf"):
        if branches in schema:
            pieces: list[tuple[str, str | None]] = []
            for branch in schema[branches]:
                pieces += [(" | ", None), *type_of(branch)]
            return pieces[1:]
    if schema.get("type") == "array":
        return [("array of ", None), *type_of(schema.get("items", {}))]
    return [(str(schema.get("type", "any")) + _bounds(schema), None)]


def _bounds(schema: dict[str, Any]) -> str:
    names = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    told = [f"{sign} {schema[name]}" for name, sign in names.items() if name in schema]
    return f" ({', '.join(told)})" if told else ""

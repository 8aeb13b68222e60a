"""/openapi.json tells of every field of every request, and what becomes of it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from wllm_api.openapi import BODIES


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").raise_for_status().json()
    return document


def body_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return body


def undescribed(document: dict[str, Any], schema: Any, path: str, seen: set[str]) -> Iterator[str]:
    """The fields without a description, those of objects inside too."""
    if isinstance(schema, list):
        for one in schema:
            yield from undescribed(document, one, path, seen)
    elif isinstance(schema, dict):
        reference = schema.get("$ref")
        if reference is not None and reference not in seen:
            seen.add(reference)
            inner = document["components"]["schemas"][reference.rpartition("/")[2]]
            if not inner.get("description"):
                yield f"{path} ({reference})"
            yield from undescribed(document, inner, path, seen)
        for name, field in schema.get("properties", {}).items():
            inside = f"{path}.{name}"
            if len(field.get("description", "")) < 5:
                yield inside
            yield from undescribed(document, field, inside, seen)
        for name in ("anyOf", "oneOf", "allOf", "items", "additionalProperties"):
            yield from undescribed(document, schema.get(name), path, seen)


@pytest.mark.parametrize("path", BODIES)
def test_every_field_is_described(document: dict[str, Any], path: str) -> None:
    assert list(undescribed(document, body_of(document, path), path, set())) == []


@pytest.mark.parametrize("path", BODIES)
def test_every_field_has_a_fate(document: dict[str, Any], path: str) -> None:
    body, schema = body_of(document, path), BODIES[path]
    assert body["properties"].keys() == schema.model_fields.keys()
    for name in (*schema.no_effect, *schema.unsupported):
        assert name in body["description"]


def test_no_request_waits_for_the_document(start_server: Any) -> None:
    with start_server() as client:
        assert client.app.openapi_schema is not None


def test_what_lacks_a_description_is_found(document: dict[str, Any]) -> None:
    body = {"properties": {"a": {}, "b": {"description": "What b is.", "items": {"properties": {"c": {}}}}}}
    assert list(undescribed(document, body, "x", set())) == ["x.a", "x.b.c"]


def test_every_post_route_of_v1_has_its_body(document: dict[str, Any]) -> None:
    posts = {path for path, methods in document["paths"].items() if "post" in methods and path.startswith("/v1/")}
    assert posts - BODIES.keys() <= {"/v1/responses/{response_id}/cancel"}

"""/openapi.json tells of the answers that there are: media types, refusals in each API's form, and no others."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest

from wllm_api.openapi import BODIES


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").raise_for_status().json()
    return document


def test_no_answer_is_told_that_never_comes(document: dict[str, Any]) -> None:
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["responses"].keys() == {"200", "default"}
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.parametrize("path", BODIES)
def test_refusal_has_the_told_form(client: httpx.Client, document: dict[str, Any], path: str) -> None:
    told = document["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
    schema = {**told, "components": document["components"]}
    answer = client.post(path, json=[])
    assert answer.status_code == 400
    jsonschema.validate(answer.json(), schema)
    for other in ({"error": {}}, {"error": {"message": "a"}}, {"type": "error"}, {}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(other, schema)


@pytest.mark.parametrize("path", [path for path, body in BODIES.items() if "stream" in body.model_fields])
def test_streams_have_the_told_media_type(client: httpx.Client, document: dict[str, Any], path: str) -> None:
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    message = [{"role": "user", "content": "Hi"}]
    fields = {"model": "scripted", "messages": message, "prompt": "Hi", "input": "Hi", "max_tokens": 2}
    body = {name: value for name, value in fields.items() if name in BODIES[path].model_fields}
    for stream in (False, True):
        answer = client.post(path, json={**body, "stream": stream})
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == list(content)[stream]


@pytest.mark.parametrize(("path", "methods"), [
    ("/v1/chat/completions", ["POST"]), ("/v1/models", ["GET"]), ("/health", ["GET"]), ("/ping", ["GET", "POST"]),
    ("/v1/responses/resp_1", ["GET", "DELETE"]), ("/api/tags", ["GET", "HEAD"]),
])  # fmt: skip
def test_refused_method_is_told_all_others(client: httpx.Client, path: str, methods: list[str]) -> None:
    answer = client.patch(path)
    assert answer.status_code == 405
    assert answer.headers["allow"].split(", ") == methods

"""More messages than any context holds are refused before they cost the event loop its time."""

from __future__ import annotations

import httpx
import pytest

from wllm_api.schemas.base import MAX_MESSAGES

ROUTES = {
    "/v1/chat/completions": "messages",
    "/tokenize": "messages",
    "/v1/messages": "messages",
    "/v1/responses": "input",
    "/api/chat": "messages",
}


@pytest.mark.parametrize(("route", "field"), ROUTES.items())
def test_too_many_messages_are_refused_by_name(client: httpx.Client, route: str, field: str) -> None:
    model = client.get("/v1/models").json()["data"][0]["id"]
    many = [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)
    answer = client.post(route, json={"model": model, "max_tokens": 1, field: many})
    assert answer.status_code == 400
    assert f"'{field}'" in answer.text and f"at most {MAX_MESSAGES}" in answer.text

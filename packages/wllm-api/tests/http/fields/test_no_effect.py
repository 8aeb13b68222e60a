"""Fields without effect are taken, whatever is in them, and change nothing."""

from typing import Any

import pytest
from field_probe import Probe

from wllm_api.openapi import BODIES

USER = [{"role": "user", "content": "Say hi."}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "temperature": 0},
    "/v1/completions": {"prompt": "Hi", "temperature": 0},
    "/v1/messages": {"messages": USER, "max_tokens": 60, "temperature": 0},
    "/v1/messages/count_tokens": {"messages": USER},
    "/v1/responses": {"input": "Hi", "temperature": 0},
    "/api/chat": {"model": "scripted", "messages": USER, "stream": False, "options": {"temperature": 0}},
    "/api/generate": {"model": "scripted", "prompt": "Hi", "stream": False, "options": {"temperature": 0}},
    "/api/show": {"model": "scripted"},
}


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("value", [True, 7, "x", {"a": ["b"]}], ids=str)
def test_no_effect(probe: Probe, path: str, value: object) -> None:
    fields = dict.fromkeys(BODIES[path].no_effect, value)
    with_fields = probe.post(path, {**REQUESTS[path], **fields})
    assert not with_fields.ignored
    if path not in ("/api/show", "/v1/messages/count_tokens"):
        assert with_fields.params == probe.post(path, REQUESTS[path]).params
        assert with_fields.prompt == probe.post(path, REQUESTS[path]).prompt
    assert with_fields.body.keys() == probe.post(path, REQUESTS[path]).body.keys()

"""Every token id that a client may send is held against the model's vocabulary before anything looks up with it."""

from typing import Any

import httpx
import pytest

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PLAIN: dict[str, Any] = {"prompt": "Hi", "max_tokens": 1}
LAST = 511  # of the model; the tokenizer knows fewer
PLACES = [
    *((path, body, field, value)
      for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", PLAIN))
      for field, value in (
          ("stop_token_ids", lambda one: [5, one]), ("allowed_token_ids", lambda one: [5, one]),
          ("logit_bias", lambda one: {"5": 1, str(one): -1}),
      )),
    ("/v1/completions", PLAIN, "prompt", lambda one: [5, one]),
    ("/v1/completions", PLAIN, "prompt", lambda one: [[5], [6, one]]),
    ("/v1/completions", {**PLAIN, "suffix": "x"}, "prompt", lambda one: [5, one]),
    ("/detokenize", {}, "tokens", lambda one: [5, one]),
]  # fmt: skip
# The ids of a bias are names, texts in any case.
LISTS = [place for place in PLACES if place[2] != "logit_bias"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "field", "value"), PLACES)
def test_beyond_the_vocabulary(
    client: httpx.Client, path: str, body: dict[str, Any], field: str, value: Any, stream: bool
) -> None:
    for token_id in (LAST + 1, 2**31, 2**63, 10**30, -1):
        answer = client.post(path, json={**body, "stream": stream, field: value(token_id)})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith(field)
    if "suffix" not in body:
        assert client.post(path, json={**body, "stream": stream, field: value(LAST)}).status_code == 200


@pytest.mark.parametrize("value", [1.0, "5", True, None, [5]], ids=str)
@pytest.mark.parametrize(("path", "body", "field", "make"), LISTS)
def test_no_id_at_all(
    client: httpx.Client, path: str, body: dict[str, Any], field: str, make: Any, value: object
) -> None:
    answer = client.post(path, json={**body, field: make(value)})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(field)

"""/v1/responses that are kept: going on from them, looking at them, forgetting them, and the limits of the memory."""

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from server_client import ServerClient

from wllm_api.response_store import ResponseStore, StoredResponse
from wllm_api.schemas.response_items import MessageItem
from wllm_api.settings import Access

HI: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def sdk(thinker: ServerClient) -> Iterator[openai.OpenAI]:
    with thinker.openai_sdk() as sdk:
        yield sdk


def test_going_on(sdk: openai.OpenAI, thinker: ServerClient, sent: Callable[[Any], list[Any]]) -> None:
    tools: Any = [{"type": "function", "name": "get_weather"}]
    first = sdk.responses.create(model="scripted", input="Hi", instructions="Only here.", tools=tools)
    results: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in first.output
        if item.type == "function_call"
    ]
    seen = sent(thinker)
    second = sdk.responses.create(model="scripted", input=results, previous_response_id=first.id, tools=tools)
    assert second.previous_response_id == first.id
    turns: list[Any] = [*HI, *first.output, *results]
    sdk.responses.create(model="scripted", input=turns, tools=tools, store=False)
    assert seen[0][0] == seen[1][0], "as if all had been sent again, less the instructions"
    sdk.responses.create(model="scripted", input="And?", previous_response_id=second.id, store=False)
    sdk.responses.create(model="scripted", input=[*turns, *second.output, {"role": "user", "content": "And?"}])
    assert seen[2][0] == seen[3][0]


def test_streamed_is_kept_too(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(model="scripted", input="Hi") as stream:
        made = stream.get_final_response()
    assert sdk.responses.retrieve(made.id).output_text == made.output_text
    cut = sdk.responses.create(model="scripted", input="Hi", max_output_tokens=2)
    assert sdk.responses.retrieve(cut.id).to_dict() == cut.to_dict()


def test_looking_at_one(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(model="scripted", input=[*HI, {"role": "assistant", "content": "Yes?", "id": "msg_7"}])
    assert sdk.responses.retrieve(made.id).to_dict() == made.to_dict()
    more = sdk.responses.create(model="scripted", input="More", previous_response_id=made.id)
    items = sdk.responses.input_items.list(more.id, order="asc").data
    assert [item.type for item in items] == ["message", "message", "reasoning", "message", "message"]
    assert (items[0].to_dict()["content"], items[1].id) == ([{"type": "input_text", "text": "Hi"}], "msg_7")
    newest = sdk.responses.input_items.list(more.id, limit=2)
    assert [item.id for item in newest.data] == [item.id for item in reversed(items)][:2]
    assert newest.has_more
    walked = [item.id for item in sdk.responses.input_items.list(more.id, limit=2)]
    assert walked == [item.id for item in reversed(items)]


def test_forgetting(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(model="scripted", input="Hi")
    sdk.responses.delete(made.id)
    for ask in (sdk.responses.retrieve, sdk.responses.cancel, sdk.responses.delete, sdk.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match="There is no response"):
            ask(made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.responses.create(model="scripted", input="x", previous_response_id=made.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


def test_not_kept_unless_wanted(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(model="scripted", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)


def test_ended_one_cannot_be_cancelled(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(model="scripted", input="Hi")
    with pytest.raises(openai.BadRequestError, match="has ended"):
        sdk.responses.cancel(made.id)


@pytest.mark.parametrize(("query", "param"), [
    ("/input_items?limit=0", "limit"), ("/input_items?limit=x", "limit"), ("/input_items?order=up", "order"),
    ("/input_items?after=nope", "after"), ("?stream=true", "stream"), ("?stream=maybe", "stream"),
])  # fmt: skip
def test_wrong_parameters(thinker: ServerClient, query: str, param: str) -> None:
    made = thinker.post("/v1/responses", json={"input": "Hi"}).json()["id"]
    answer = thinker.get(f"/v1/responses/{made}{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_each_key_has_its_own(start_server: Any) -> None:
    with start_server(Access(api_keys=("one", "two"))) as client:
        mine, other = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        made = client.post("/v1/responses", json={"input": "Hi"}, headers=mine).json()["id"]
        body = {"input": "x", "previous_response_id": made}
        assert client.get(f"/v1/responses/{made}", headers=other).status_code == 404
        assert client.delete(f"/v1/responses/{made}", headers=other).status_code == 404
        assert client.post("/v1/responses", json=body, headers=other).status_code == 400
        assert client.get(f"/v1/responses/{made}", headers=mine).status_code == 200
        assert client.post("/v1/responses", json=body, headers=mine).status_code == 200


def stored(number: int, text: str = "x") -> StoredResponse:
    item = MessageItem(role="user", content=text)
    return StoredResponse("me", {"id": f"resp_{number}"}, (item,), (item,))


def test_memory_has_limits() -> None:
    store = ResponseStore(max_responses=10, max_characters=20_000)
    for number in range(1000):
        store.put(stored(number))
        assert len(store) == min(number + 1, 10)
    assert store.get("resp_989", "me") is None
    assert store.get("resp_990", "me") is not None
    store.put(stored(1000, "x" * 15_000))
    store.put(stored(1001, "x" * 15_000))
    assert [store.get(f"resp_{number}", "me") is not None for number in (999, 1000, 1001)] == [False, False, True]
    store.put(stored(1002, "x" * 30_000))
    assert len(store) == 0
    for number in range(10):
        store.put(stored(number))
    for number in range(10):
        store.delete(f"resp_{number}")
    store.put(stored(11, "x" * 15_000))
    assert store.get("resp_11", "me") is not None, "what was deleted takes no room"

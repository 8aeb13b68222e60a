"""The Responses API through OpenAI's package: objects, input items, events in their order, refusals."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from contract.conftest import Ask

FRANCE = "What is the capital of France?"
EVENTS = [
    "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    "response.output_text.done", "response.content_part.done", "response.output_item.done",
]  # fmt: skip


@pytest.fixture(scope="module")
def answer(respond: Ask) -> Any:
    return respond(FRANCE, max_output_tokens=40)


@pytest.fixture(scope="module")
def events(respond: Ask) -> list[Any]:
    return list(respond(FRANCE, max_output_tokens=40, stream=True))


def test_head(answer: Any, model: str) -> None:
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.model == model
    assert answer.status == "completed" and answer.error is None and answer.incomplete_details is None


def test_output(answer: Any) -> None:
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    (part,) = item.content
    assert part.type == "output_text" and part.annotations == []
    assert answer.output_text == part.text and part.text.endswith("Paris.")


def test_usage(answer: Any) -> None:
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens >= 0 and usage.output_tokens_details.reasoning_tokens == 0


def test_cut_answer_says_why(respond: Ask) -> None:
    answer = respond(max_output_tokens=3)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete" and answer.usage.output_tokens == 3


def test_settings_come_back(respond: Ask) -> None:
    answer = respond(temperature=0.5, top_p=0.9, metadata={"a": "b"}, instructions="Be brief.", max_output_tokens=2)
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.9, 2)
    assert answer.metadata == {"a": "b"} and answer.instructions == "Be brief."


def test_events_are_complete_and_in_order(events: list[Any]) -> None:
    kinds = [event.type for event in events]
    assert [kind for kind in kinds if kind != "response.output_text.delta"] == [*EVENTS, "response.completed"]
    assert kinds[4] == "response.output_text.delta"


def test_events_are_numbered(events: list[Any]) -> None:
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_events_name_their_place(events: list[Any]) -> None:
    parts = [event for event in events if event.type.startswith("response.output_text")]
    assert {(event.output_index, event.content_index) for event in parts} == {(0, 0)}
    assert len({event.item_id for event in parts}) == 1


def test_stream_is_the_whole(events: list[Any], answer: Any) -> None:
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    assert text == final.output_text == answer.output_text
    assert final.usage.output_tokens == answer.usage.output_tokens and final.status == "completed"


def test_cut_stream_is_incomplete(respond: Ask) -> None:
    last = list(respond(max_output_tokens=2, stream=True))[-1]
    assert last.type == "response.incomplete" and last.response.usage.output_tokens == 2


def test_helper_of_the_package(client: openai.OpenAI, model: str, answer: Any) -> None:
    with client.responses.stream(model=model, input=FRANCE, max_output_tokens=40) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == stream.get_final_response().output_text == answer.output_text


def test_instructions_are_a_system_message(respond: Ask) -> None:
    told = respond("Hi", instructions="You are a pirate.", max_output_tokens=1)
    same = respond(
        [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Hi"}], max_output_tokens=1
    )
    assert told.usage.input_tokens == same.usage.input_tokens != respond("Hi", max_output_tokens=1).usage.input_tokens


@pytest.mark.parametrize(
    "content",
    [
        [{"role": "user", "content": FRANCE}],
        [{"type": "message", "role": "user", "content": FRANCE}],
        [{"role": "user", "content": [{"type": "input_text", "text": FRANCE}]}],
        [{"role": "user", "content": [{"type": "input_text", "text": FRANCE[:8]},
                                      {"type": "input_text", "text": FRANCE[8:]}]}],
    ],
    ids=["plain", "typed", "part", "parts"],
)  # fmt: skip
def test_spellings_of_the_input(respond: Ask, answer: Any, content: Any) -> None:
    assert respond(content, max_output_tokens=40).output_text == answer.output_text


def test_output_goes_back_as_input(respond: Ask, answer: Any) -> None:
    turns = [{"role": "user", "content": FRANCE}, *answer.output, {"role": "user", "content": "And of Italy?"}]
    following = respond(turns, max_output_tokens=12)
    assert "Rome" in following.output_text and following.usage.input_tokens_details.cached_tokens > 0


def test_logprobs(respond: Ask) -> None:
    answer = respond(include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=3)
    rows = answer.output[0].content[0].logprobs
    assert "".join(row.token for row in rows) == answer.output_text
    assert [len(row.top_logprobs) for row in rows] == [2, 2, 2]


def test_seed_repeats(respond: Ask) -> None:
    texts = [respond(temperature=1.5, seed=seed, max_output_tokens=8).output_text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


OPTIONAL = [
    "instructions", "temperature", "top_p", "metadata", "tools", "tool_choice", "text", "reasoning", "store",
    "previous_response_id", "truncation", "include", "stream", "parallel_tool_calls", "user", "background",
    "service_tier", "top_logprobs",
]  # fmt: skip


@pytest.mark.parametrize(
    "fields", [OPTIONAL, *(pytest.param([field], id=field, marks=pytest.mark.full) for field in OPTIONAL)]
)
def test_nulls_are_absent(client: openai.OpenAI, model: str, fields: list[str]) -> None:
    body = {"model": model, "input": "Say hello.", "max_output_tokens": 2, **dict.fromkeys(fields)}
    answer = client.post("/responses", body=body, cast_to=dict[str, Any])
    assert answer["output"][0]["content"][0]["text"].startswith("Hello")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "nobody", "content": "Hi"}]}, "input[0].role"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["no.such.thing"]}, "include"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"stream": "yes"}, "stream"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_with_the_name_of_the_field(respond: Ask, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        respond(**fields)
    assert refused.value.param == param and refused.value.type == "invalid_request_error"


def test_answers_are_not_found_later(client: openai.OpenAI) -> None:
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call("resp_absent")

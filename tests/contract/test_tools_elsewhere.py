"""Tools and forms of the answer at the other routes: Responses, Anthropic's messages, Ollama's chat and generate."""

from __future__ import annotations

import json
from typing import Any, Literal

import anthropic
import jsonschema
import ollama
import openai
import pytest
from contract.conftest import Ask
from contract.requests import CITY, function, user
from pydantic import BaseModel

QUESTION = "Weather in Paris?"
FLAT: Any = {"type": "function", "name": "get_weather", "parameters": CITY}
CLAUDES: Any = {"name": "get_weather", "description": "The weather.", "input_schema": CITY}
FORM: Any = {"type": "json_schema", "name": "city", "schema": CITY}


class City(BaseModel):
    city: Literal["Paris", "Rome"]


def fits(value: object) -> bool:
    jsonschema.validate(value, CITY)
    return True


@pytest.fixture(scope="module")
def called(respond: Ask) -> Any:
    return respond(QUESTION, tools=[FLAT], tool_choice="required", parallel_tool_calls=False, max_output_tokens=60)


@pytest.fixture(scope="module")
def used(message: Ask) -> Any:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    return message(QUESTION, tools=[CLAUDES], tool_choice=choice, max_tokens=60)


def test_response_with_a_call(called: Any) -> None:
    (item,) = called.output
    assert (item.type, item.name, item.status, called.status) == ("function_call", "get_weather") + ("completed",) * 2
    assert item.call_id and fits(json.loads(item.arguments)) and called.output_text == ""


def test_response_with_a_named_function(respond: Ask) -> None:
    choice = {"type": "function", "name": "get_weather"}
    (item,) = respond(QUESTION, tools=[FLAT], tool_choice=choice, max_output_tokens=60).output
    assert item.type == "function_call" and fits(json.loads(item.arguments))


def test_events_of_a_call(respond: Ask, called: Any) -> None:
    fields: Any = {"tools": [FLAT], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 60}
    events = list(respond(QUESTION, stream=True, **fields))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert len(deltas) > 1 and "".join(deltas) == done.arguments == called.output[0].arguments
    assert events[-1].response.output[0].arguments == done.arguments


def test_result_of_a_call_goes_back(respond: Ask, called: Any) -> None:
    result = {"type": "function_call_output", "call_id": called.output[0].call_id, "output": "Sunny"}
    turns = [user(QUESTION), *called.output, result]
    assert respond(turns, tools=[FLAT], tool_choice="none").output_text


def test_response_keeps_a_schema(respond: Ask) -> None:
    assert fits(json.loads(respond(QUESTION, text={"format": FORM}, max_output_tokens=40).output_text))


def test_response_parsed_by_the_package(client: openai.OpenAI, model: str) -> None:
    answer = client.responses.parse(model=model, input=QUESTION, text_format=City, max_output_tokens=40)
    assert isinstance(answer.output_parsed, City)


def test_kept_response(client: openai.OpenAI, respond: Ask) -> None:
    kept = respond()
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    (item,) = client.responses.input_items.list(kept.id)
    assert item.type == "message"
    client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)


def test_response_that_is_not_to_be_kept(client: openai.OpenAI, respond: Ask) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(respond(store=False).id)


def test_message_with_a_call(used: Any) -> None:
    (block,) = used.content
    assert (block.type, block.name, used.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert block.id and fits(block.input)


def test_message_with_a_named_tool(message: Ask) -> None:
    (block,) = message(
        QUESTION, tools=[CLAUDES], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=60
    ).content
    assert block.type == "tool_use" and fits(block.input)


def test_events_of_a_tool(message: Ask, used: Any) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    events = list(message(QUESTION, tools=[CLAUDES], tool_choice=choice, max_tokens=60, stream=True))
    (start,) = [event for event in events if event.type == "content_block_start"]
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert start.content_block.name == "get_weather" and start.content_block.input == {}
    assert {delta.type for delta in deltas} == {"input_json_delta"}
    assert json.loads("".join(delta.partial_json for delta in deltas)) == used.content[0].input
    assert events[-2].delta.stop_reason == "tool_use"


def test_result_of_a_tool_goes_back(message: Ask, used: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": used.content[0].id, "content": "Sunny"}
    turns = [user(QUESTION), {"role": "assistant", "content": used.content}, {"role": "user", "content": [result]}]
    assert message(messages=turns, tools=[CLAUDES], tool_choice={"type": "none"}).content[0].text


def test_tools_are_counted(claude: anthropic.Anthropic, model: str) -> None:
    messages: Any = [user(QUESTION)]
    alone = claude.messages.count_tokens(model=model, messages=messages).input_tokens
    assert claude.messages.count_tokens(model=model, messages=messages, tools=[CLAUDES]).input_tokens > alone


def test_message_keeps_a_schema(message: Ask) -> None:
    form = {"format": {"type": "json_schema", "schema": CITY}}
    assert fits(json.loads(message(QUESTION, output_config=form, max_tokens=40).content[0].text))


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [CLAUDES, CLAUDES], "tool_choice": {"type": "tool", "name": "absent"}},
        {"tools": [{"name": "bad name", "input_schema": CITY}]},
        {"tool_choice": {"type": "any"}},
    ],
    ids=str,
)
def test_tools_that_messages_refuse(message: Ask, fields: dict[str, Any]) -> None:
    with pytest.raises(anthropic.BadRequestError, match="tool"):
        message(**fields)


GREEDY: Any = {"temperature": 0, "num_predict": 40}


def test_ollamas_format(llama: ollama.Client, model: str) -> None:
    chat = llama.chat(model, messages=[user(QUESTION)], format=City.model_json_schema(), options=GREEDY)
    assert City.model_validate_json(chat.message.content or "")
    assert fits(json.loads(llama.generate(model, QUESTION, format=CITY, options=GREEDY).response))
    streamed = llama.chat(model, messages=[user(QUESTION)], format=CITY, options=GREEDY, stream=True)
    assert fits(json.loads("".join(part.message.content or "" for part in streamed)))


def test_ollamas_json(llama: ollama.Client, model: str) -> None:
    short: Any = {"temperature": 0, "num_predict": 4}
    assert llama.generate(model, "Some JSON.", format="json", options=short).response.startswith("{")


def test_ollamas_tools(llama: ollama.Client, model: str) -> None:
    """They reach the model, and its own call and the result go back as Ollama writes them."""
    short: Any = {"temperature": 0, "num_predict": 4}
    turns: Any = [user(QUESTION)]
    alone = llama.chat(model, messages=turns, options=short).prompt_eval_count or 0
    assert (llama.chat(model, messages=turns, tools=[function()], options=short).prompt_eval_count or 0) > alone
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    turns += [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "Sun"},
    ]
    assert llama.chat(model, messages=turns, tools=[function()], options=short).message.content

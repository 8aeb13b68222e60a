"""The openai package of npm: chat, streams, forced tools, its exceptions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from clients.snippets import node_folder, output_of_node
from server.running_server import RunningServer

SCRIPT = """
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "%s/v1", apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const ask = (more) =>
  client.chat.completions.create({
    model, messages: [{ role: "user", content: "What is the capital of France?" }], max_tokens: 40, ...more,
  });
const city = { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"] };

const found = { whole: (await ask({})).choices[0] };
const pieces = [];
for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) {
  if (chunk.choices.length) pieces.push(chunk.choices[0].delta.content ?? "");
  else found.usage = chunk.usage;
}
found.pieces = pieces;
const tools = [{ type: "function", function: { name: "get_weather", parameters: city } }];
found.call = (await ask({ tools, tool_choice: "required", parallel_tool_calls: false })).choices[0].message.tool_calls;
const format = { type: "json_schema", json_schema: { name: "city", schema: city } };
found.form = (await ask({ response_format: format })).choices[0].message.content;
found.response = (await client.responses.create({ model, input: "Say hello.", max_output_tokens: 4 })).output_text;
found.errors = [];
for (const more of [{ model: "absent" }, { temperature: 9 }]) {
  await ask(more).catch((error) => found.errors.push([error.constructor.name, error.status, error.param]));
}
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def found(server: RunningServer) -> Any:
    if node_folder() is None:
        pytest.skip("needs Node and the openai package of npm: nox -s clients, where Node is installed")
    return json.loads(output_of_node(SCRIPT % server.url, "smoke"))


def test_chat(found: Any) -> None:
    assert "Paris" in found["whole"]["message"]["content"] and found["whole"]["finish_reason"] == "stop"


def test_stream(found: Any) -> None:
    assert "".join(found["pieces"]) == found["whole"]["message"]["content"]
    assert found["usage"]["completion_tokens"] > 4


def test_forced_call_and_form(found: Any) -> None:
    (call,) = found["call"]
    assert call["function"]["name"] == "get_weather"
    for text in (call["function"]["arguments"], found["form"]):
        assert json.loads(text)["city"] in ("Paris", "Rome")


def test_responses(found: Any) -> None:
    assert found["response"].startswith("Hello")


def test_errors(found: Any) -> None:
    assert found["errors"] == [["NotFoundError", 404, "model"], ["BadRequestError", 400, "temperature"]]

"""What asks for a form of the answer: refused with the reason and the place, or taken; the server lives on."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from wllm_api.grammars import Constraint, GrammarChecker, checker

USER = [{"role": "user", "content": "Hi"}]


def chat(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": USER, "max_tokens": 8, **fields})


def with_schema(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


BAD_SCHEMAS: list[tuple[object, str]] = [
    ({"type": "stringg"}, "stringg"), ({"type": "object", "properties": "no"}, "/properties"),
    ({"$ref": "#/nowhere"}, "nowhere"), ({"type": "string", "pattern": "("}, "unclosed group"),
    ({"enum": []}, "anyOf is empty"), ([], "JSON object"), ("x", "string"),
    ({"minItems": 3, "maxItems": 1, "type": "array"}, "minItems"), (False, "JSON object"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"minimun": 3}, "minimun"),
    ({"not": {}}, "not"), ({"type": "object", "propertyNames": {}}, "propertyNames"),
    ({"type": "string", "x-guidance": {"lenient": True}}, "x-guidance"),
    ({"properties": {"a": {"format": "nix"}}}, "/properties/a"),
    ({"properties": {"a/b": {"properties": {"c": {"type": "x"}}}}}, "/properties/a~1b/properties/c"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no answer"),
    ({"$ref": "http://127.0.0.1:1/x"}, "http://127.0.0.1:1/x"),
    ({"type": "integer", "minimum": "3"}, "minimum"),
    ({"properties": {"a": {}}, "required": [[]]}, "/required"), ({"items": {"required": "a"}}, "/items/required"),
    ({"enum": "a"}, "/enum"), ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "minItems": 1,
                                                                     "type": "array"}}}, "without end"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "word"), BAD_SCHEMAS)
def test_a_bad_schema_is_refused_with_the_reason(client: httpx.Client, schema: object, word: str) -> None:
    """R27."""
    answer = chat(client, **with_schema(schema))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "response_format" and error["message"].startswith("'response_format")
    assert word in error["message"]
    assert chat(client).status_code == 200


@pytest.mark.parametrize("fields", [
    {"response_format": {"type": "json_schema"}}, {"response_format": {"type": "nonsense"}}, {"response_format": {}},
    {"response_format": {"type": "json_object", "schema": {"type": "x"}}},
    {"response_format": {"type": "json_object", "schema": "{}"}},
    {"response_format": {"type": "structural_tag"}}, {"response_format": 3}, {"structured_outputs": 3},
    {"structured_outputs": {}}, {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"structured_outputs": {"structural_tag": "x"}}, {"structured_outputs": {"regex": "("}},
    {"structured_outputs": {"choice": []}}, {"structured_outputs": {"choice": [1]}},
    {"structured_outputs": {"json": "{"}}, {"structured_outputs": {"json_object": 1}},
    {"structured_outputs": {"json": {"type": "x"}}}, {"structured_outputs": {"regex": "a", "whitespace_pattern": "b"}},
    {"guided_json": {"type": "x"}}, {"guided_regex": "["}, {"guided_choice": []}, {"guided_grammar": "start: nope"},
    {"guided_grammar": "(("}, {"guided_choice": "x"}, {"guided_regex": "a" * 300_000},
    {"guided_regex": "a", "response_format": {"type": "json_object"}},
])  # fmt: skip
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_bad_forms_are_refused(client: httpx.Client, route: str, fields: dict[str, Any]) -> None:
    answer = client.post(route, json={"messages": USER, "prompt": "Hi", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].partition(".")[0] in fields


HARD_VALUES = {
    "a huge number": '{"type": "integer", "minimum": 1' + "0" * 400 + "}",
    "a huge exponent": '{"type": "number", "maximum": 1e999}',
    "a huge number beside a fraction": '{"exclusiveMinimum": 1.0, "allOf": [{"maximum": 1' + "0" * 400 + "}]}",
    "no number": '{"maximum": NaN}',
    "half a character": r'{"const": "\ud800"}',
    "a deep value": '{"const": ' + "[" * 400 + "]" * 400 + "}",
}


@pytest.mark.parametrize("schema", HARD_VALUES.values(), ids=HARD_VALUES)
def test_a_schema_with_a_value_beyond_json_is_refused(client: httpx.Client, schema: str) -> None:
    answer = chat(client, structured_outputs={"json": schema})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "structured_outputs"


@pytest.mark.parametrize(("route", "tool"), [
    ("chat/completions", {"type": "function", "function": {"name": "f", "parameters": ...}}),
    ("responses", {"type": "function", "name": "f", "parameters": ...}),
    ("messages", {"name": "f", "input_schema": ...}),
])  # fmt: skip
@pytest.mark.parametrize("schema", [HARD_VALUES["a huge number"], HARD_VALUES["a deep value"]], ids=["number", "deep"])
def test_a_tool_with_a_value_beyond_json_cannot_be_forced(
    client: httpx.Client, route: str, tool: dict[str, Any], schema: str
) -> None:
    parameters = f'{{"type": "object", "properties": {{"x": {schema}}}}}'
    body = {
        "messages": USER, "input": "Hi", "max_tokens": 8, "max_output_tokens": 16, "tools": [tool],
        "tool_choice": {"type": "any"} if route == "messages" else "required",
    }  # fmt: skip
    taken = ("messages", "max_tokens", "tools", "tool_choice")
    names = ("input", "max_output_tokens", "tools", "tool_choice") if route == "responses" else taken
    text = json.dumps({name: body[name] for name in names}, default=lambda _: "PARAMETERS")
    answer = client.post(
        f"/v1/{route}",
        content=text.replace('"PARAMETERS"', parameters),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text


def test_a_schema_is_compiled_beside_the_event_loop(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """R27: others are served while a check takes its time."""
    compiling, go_on = threading.Event(), threading.Event()
    check_now = GrammarChecker.check_now

    def slow(checker: GrammarChecker, constraint: Constraint) -> Any:
        compiling.set()
        assert go_on.wait(20)
        return check_now(checker, constraint)

    monkeypatch.setattr(GrammarChecker, "check_now", slow)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{client.base_url}/v1/chat/completions", json={
            "messages": USER, "max_tokens": 8, **with_schema({"type": "object", "required": ["beside the loop"]})
        }, timeout=30)  # fmt: skip
        try:
            assert compiling.wait(20)
            assert client.get("/health", timeout=5).status_code == 200
            assert chat(client).status_code == 200 and not asked.done()
        finally:
            go_on.set()
        assert asked.result().status_code == 200


def test_the_first_form_finds_its_tokenizer_loaded(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading it holds up all streams, so a server is not ready before."""

    def late(*_: object, **__: object) -> None:
        raise AssertionError("loaded late")

    monkeypatch.setattr(checker, "LLTokenizer", late)
    assert chat(client, **with_schema({"type": "object", "required": ["first"]})).status_code == 200


def test_a_huge_schema_is_refused_before_it_is_compiled(client: httpx.Client) -> None:
    names = [f"p{number}" for number in range(20_000)]
    answer = chat(client, **with_schema({"properties": {name: {} for name in names}, "required": names}))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("'response_format' cannot be used: The schema has ")


def test_a_broad_schema_is_refused_with_the_number_the_limit_and_the_fix(client: httpx.Client) -> None:
    """Not in the middle of an answer, where the compiler meets its limits."""
    names = [f"p{number}" for number in range(2000)]
    broad = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    tool = {"type": "function", "function": {"name": "f", "parameters": broad}}
    strict = {"type": "function", "function": {**tool["function"], "strict": True}}  # type: ignore[dict-item]
    for fields, param in (
        (with_schema(broad), "response_format"),
        ({"guided_json": broad}, "guided_json"),
        ({"tools": [tool], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [strict]}, "tools[0].function.parameters"),
    ):
        error = chat(client, **fields).json()["error"]
        assert error["param"] == param and "has 2,000 properties in a row" in error["message"]
        assert "the limit is 100" in error["message"] and "Require more of them" in error["message"]
    assert chat(client, tools=[tool]).headers["X-Wllm-Ignored"] == "tools[0].function.parameters"
    assert chat(client, **with_schema({**broad, "required": names})).status_code == 200


def test_a_deep_schema_is_refused(client: httpx.Client) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        schema = {"type": "array", "items": schema}
    answer = chat(client, **with_schema(schema))
    assert answer.status_code == 400 and "nested" in answer.json()["error"]["message"]


@pytest.mark.parametrize("fields", [
    {"response_format": None}, {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object"}},
    with_schema({"type": "object", "title": "T", "x-order": 1, "properties": {"not": {"uniqueItems": False}}}),
    {"structured_outputs": {"json": '{"type": "object"}', "regex": None, "disable_fallback": True}},
    {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
    {"structured_outputs": {"regex": "[a-z]+", "json_object": False}}, {"structured_outputs": {"choice": ["a", '"\n']}},
    {"structured_outputs": {"grammar": 'root ::= "a" | "b" root'}}, {"guided_grammar": "start: /a+/"},
    {"guided_json": {"type": "object"}, "guided_decoding_backend": "auto"}, {"guided_choice": ["é"]},
])  # fmt: skip
def test_good_forms_are_taken(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = chat(client, **fields)
    assert answer.status_code == 200, answer.text
    assert "x-wllm-ignored" not in answer.headers

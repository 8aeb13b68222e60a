"""Ollama's API over HTTP: the shapes on the wire and each option."""

import json
from typing import Any

import httpx
import pytest

from wllm_api.schemas.ollama import OllamaGenerateRequest
from wllm_api.schemas.ollama_options import Options
from wllm_api.schemas.sampling import SamplingFields
from wllm_api.settings import Access

USER = [{"role": "user", "content": "Hello there"}]
GREEDY = {"temperature": 0}
ENDING = {
    "done_reason", "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
    "eval_duration",
}  # fmt: skip


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(path, json={"model": "scripted", "stream": False, **body})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def generate(client: httpx.Client, prompt: str = "Hello", **options: Any) -> dict[str, Any]:
    return post(client, "/api/generate", prompt=prompt, options={**GREEDY, **options})


def openai_text(client: httpx.Client, **fields: Any) -> str:
    body = {"messages": USER, "temperature": 0, "top_k": 40, "top_p": 0.9, **fields}
    text: str = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    return text


def test_chat_is_the_chat_of_openai(client: httpx.Client) -> None:
    answer = post(client, "/api/chat", messages=USER, options=GREEDY)
    assert answer.keys() == {"model", "created_at", "message", "done"} | ENDING
    assert answer["message"] == {"role": "assistant", "content": openai_text(client)}
    assert (answer["model"], answer["done"], answer["done_reason"]) == ("scripted", True, "stop")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_stream_is_the_whole(client: httpx.Client, path: str) -> None:
    body = {"model": "scripted", "options": {"temperature": 1.0, "seed": 7, "num_predict": 40}, "logprobs": True}
    body |= {"messages": USER, "top_logprobs": 2} if path == "/api/chat" else {"prompt": "Héllo 🫠"}

    def text(one: dict[str, Any]) -> str:
        return str(one["message"]["content"] if path == "/api/chat" else one["response"])

    parts = lines(client.post(path, json=body))
    whole = client.post(path, json={**body, "stream": False}).json()
    assert [one["done"] for one in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(map(text, parts)) == text(whole) != ""
    assert text(parts[-1]) == ""
    assert [row for one in parts for row in one.get("logprobs", [])] == whole["logprobs"]
    assert all(not ENDING & one.keys() for one in parts[:-1])
    for name in ("model", "done_reason", "prompt_eval_count", "eval_count"):
        assert parts[-1][name] == whole[name]


def test_durations_are_nanoseconds_of_this_request(start_server: Any) -> None:
    with start_server(step_s=0.02) as client:
        answer = generate(client, num_predict=11)
    assert answer["eval_count"] == 11
    assert 0.15e9 < answer["eval_duration"] < answer["total_duration"] < 30e9
    parts = answer["load_duration"] + answer["prompt_eval_duration"] + answer["eval_duration"]
    assert parts == answer["total_duration"]


def test_default_is_a_stream(client: httpx.Client) -> None:
    body = {"model": "scripted", "prompt": "Hello", "stream": None, "options": {"num_predict": 3}}
    assert lines(client.post("/api/generate", json=body))[-1]["eval_count"] == 3


def test_generate_goes_through_the_template(client: httpx.Client) -> None:
    answer = post(client, "/api/generate", prompt="Hello there", options=GREEDY)
    assert answer["response"] == openai_text(client)
    asked = [{"role": "system", "content": "Be brief"}, *USER]
    answer = post(client, "/api/generate", prompt="Hello there", system="Be brief", options=GREEDY)
    assert answer["response"] == openai_text(client, messages=asked)
    assert answer["prompt_eval_count"] == client.post("/tokenize", json={"messages": asked}).json()["count"]


def test_raw_is_the_prompt_alone(client: httpx.Client) -> None:
    answer = post(client, "/api/generate", prompt="Hello there", raw=True, options={**GREEDY, "num_predict": 9})
    same = client.post("/v1/completions", json={
        "prompt": "Hello there", "temperature": 0, "top_k": 40, "top_p": 0.9, "max_tokens": 9,
    }).json()  # fmt: skip
    assert answer["response"] == same["choices"][0]["text"]
    assert answer["prompt_eval_count"] == same["usage"]["prompt_tokens"]


@pytest.mark.parametrize("name", ["scripted", "scripted:latest", "org/other-name", "org/other-name:latest"])
def test_names(client: httpx.Client, name: str) -> None:
    for path, body in (("/api/chat", {"messages": USER}), ("/api/generate", {"prompt": "x"}), ("/api/show", {})):
        answer = client.post(path, json={"model": name, "stream": False, "options": {"num_predict": 1}, **body})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", name) == name


@pytest.mark.parametrize("count", [None, 0, -1, -2])
def test_answers_without_a_limit_take_all_that_fits(start_server: Any, count: int | None) -> None:
    with start_server(max_model_len=64, reply="word " * 100) as client:
        answer = generate(client, **({} if count is None else {"num_predict": count}))
    assert answer["done_reason"] == "length"
    assert answer["prompt_eval_count"] + answer["eval_count"] == 64


def test_limit(client: httpx.Client) -> None:
    answer = generate(client, num_predict=5)
    assert (answer["eval_count"], answer["done_reason"]) == (5, "length")
    assert generate(client, num_predict=5.0)["response"] == answer["response"]


@pytest.mark.parametrize(("options", "fields"), [
    ({"temperature": 0.7, "seed": 3}, {"temperature": 0.7, "seed": 3}),
    ({"temperature": 1, "seed": 3, "top_k": 2, "top_p": 0.5, "min_p": 0.1},
     {"temperature": 1, "seed": 3, "top_k": 2, "top_p": 0.5, "min_p": 0.1}),
    ({"temperature": 0, "repeat_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": 1, "repeat_last_n": -1},
     {"temperature": 0, "repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": 1}),
    ({"temperature": 0, "repeat_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": 1, "repeat_last_n": 0},
     {"temperature": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}),
    ({}, {"temperature": 0.8, "top_k": 40, "top_p": 0.9}),
    ({"seed": -1}, {"temperature": 0.8, "top_k": 40, "top_p": 0.9}),
    ({"stop": ["a", "b"]}, {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "stop": ["a", "b"]}),
])  # fmt: skip
def test_options_become_sampling_fields(options: dict[str, Any], fields: dict[str, Any]) -> None:
    body = OllamaGenerateRequest.model_validate({"model": "m", "options": options})
    defaults = {"top_k": 40, "top_p": 0.9}
    assert body.options.sampling().model_dump() == SamplingFields.model_validate({**defaults, **fields}).model_dump()


def test_options_that_are_left_out_leave_the_models_own() -> None:
    assert Options().sampling().model_fields_set == {"stop"}
    assert Options(temperature=0.5).sampling().model_fields_set == {"stop", "temperature"}


def test_stop(client: httpx.Client) -> None:
    text = generate(client, num_predict=30)["response"]
    stop = text[4:7]
    answer = generate(client, num_predict=30, stop=[stop])
    assert answer["response"] == text[: text.index(stop)]
    assert answer["done_reason"] == "stop"


@pytest.mark.parametrize("body", [
    {"format": "", "tools": [], "keep_alive": -1, "think": False},
    {"keep_alive": "1h30m", "options": {"num_ctx": 4096, "num_gpu": 99, "mirostat": 0, "tfs_z": 1.0, "typical_p": 1}},
    {"keep_alive": 0, "options": None, "format": None, "tools": None, "logprobs": False},
    {"options": {"num_ctx": 16, "repeat_last_n": 64, "repeat_penalty": 1.0, "stop": []}, "truncate": False},
])  # fmt: skip
def test_harmless_fields_pass(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = client.post("/api/chat", json={"model": "scripted", "messages": USER, "stream": False, **body})
    assert answer.status_code == 200, answer.text
    assert "x-wllm-ignored" not in answer.headers


def test_unknown_fields_are_named(client: httpx.Client) -> None:
    answer = client.post("/api/chat", json={
        "model": "scripted", "messages": [{**USER[0], "mood": 1}], "zzz": 1, "options": {"yyy": 2, "num_predict": 1},
    })  # fmt: skip
    assert answer.status_code == 200
    assert answer.headers["x-wllm-ignored"] == "zzz, messages.mood, options.yyy"


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_to_answer_asks_for_the_model(client: httpx.Client, stream: bool) -> None:
    for path, body in (("/api/chat", {"messages": []}), ("/api/chat", {}), ("/api/generate", {"prompt": ""})):
        answer = client.post(path, json={"model": "scripted", "stream": stream, **body}).json()
        assert answer["done"] is True
        assert answer["done_reason"] == "load"
        assert (answer["message"]["content"] if path == "/api/chat" else answer["response"]) == ""


def test_a_conversation_with_tools_is_shown(client: httpx.Client) -> None:
    call = {"function": {"name": "weather", "arguments": {"town": "Köln"}}}
    answer = post(client, "/api/chat", options=GREEDY, messages=[
        *USER, {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ])  # fmt: skip
    same = [
        *USER, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {
            "name": "weather", "arguments": '{"town": "Köln"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]  # fmt: skip
    assert answer["prompt_eval_count"] == client.post("/tokenize", json={"messages": same}).json()["count"]
    assert answer["message"]["content"] == openai_text(client, messages=same)


def test_tags_show_and_ps(client: httpx.Client) -> None:
    tags = client.get("/api/tags").json()["models"]
    assert [one["name"] for one in tags] == ["scripted:latest", "org/other-name:latest"]
    loaded = client.get("/api/ps").json()["models"]
    assert [one["model"] for one in loaded] == ["scripted:latest", "org/other-name:latest"]
    assert loaded[0]["context_length"] == 4096
    shown = client.post("/api/show", json={"name": tags[0]["name"], "verbose": True}).json()
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 4096
    assert shown["capabilities"] == ["completion", "tools"]
    assert "<|im_start|>" in shown["template"]
    assert tags[0]["details"] == shown["details"]
    for path in ("/", "/api/version", "/api/tags"):
        assert client.head(path).status_code == 200
        assert client.get(path).status_code == 200


def test_before_the_model_is_loaded(start_server: Any) -> None:
    with start_server(ready=False, load_s=1.0) as client:
        assert client.get("/api/ps").json() == {"models": []}
        assert client.get("/api/tags").json()["models"][0]["name"] == "scripted:latest"
        answer = client.post("/api/chat", json={"model": "scripted", "messages": USER})
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "loading" in answer.json()["error"]


def test_keys_guard_it(start_server: Any) -> None:
    with start_server(Access(api_keys=("secret",))) as client:
        answer = client.get("/api/tags")
        assert answer.status_code == 401
        assert isinstance(answer.json()["error"], str)
        assert client.get("/api/tags", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_late_error_is_the_last_line(start_server: Any) -> None:
    with start_server(crash_after=5, reply="word " * 100) as client:
        parts = lines(client.post("/api/generate", json={"model": "scripted", "prompt": "Hello"}))
    assert parts[-1].keys() == {"error"}
    assert len(parts) > 1
    assert all(one["done"] is False for one in parts[:-1])

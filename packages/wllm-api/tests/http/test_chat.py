"""/v1/chat/completions: the shape of answers, messages, lengths, sampling fields."""

from typing import Any

import httpx
import pytest

USER = [{"role": "user", "content": "Say hi."}]
TOOL_CALL = {"id": "0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Boston"}'}}


def chat(client: httpx.Client, messages: object = USER, **fields: Any) -> dict[str, Any]:
    body = {"model": "scripted", "temperature": 0, "messages": messages, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def refused(client: httpx.Client, messages: object = USER, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json={"messages": messages, **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "Traceback" not in error["message"]
    return error


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_shape(client: httpx.Client) -> None:
    answer = chat(client)
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "scripted")
    (choice,) = answer["choices"]
    assert choice.keys() == {"index", "message", "logprobs", "finish_reason"}
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "stop")
    assert choice["message"].keys() == {"role", "content", "refusal"}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


def test_second_time_is_cached(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "A question that nobody has asked before, long enough for a block."}]
    first, second = chat(client, messages), chat(client, messages)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < 16
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    assert text_of(first) == text_of(second)


@pytest.mark.parametrize("fields", [{}, {"stop": []}, {"stop": None}])
def test_model_end_token_ends_whatever_stop_says(client: httpx.Client, fields: dict[str, Any]) -> None:
    """R03."""
    answer = chat(client, **fields)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "<|" not in text_of(answer)
    assert text_of(answer) == text_of(chat(client))


def test_all_optional_fields_null(client: httpx.Client) -> None:
    """R08."""
    names = (
        "stream_options function_call functions tools stop seed n logprobs top_logprobs logit_bias response_format "
        "temperature top_p presence_penalty frequency_penalty user metadata service_tier reasoning_effort modalities"
    )
    fields: dict[str, Any] = dict.fromkeys(names.split())
    chat(client, [{"role": "user", "content": "Hi", "name": None}], max_tokens=4, stream=False, **fields)


@pytest.mark.parametrize(("fields", "limit"), [
    ({"max_tokens": None}, None), ({"max_tokens": -1}, None), ({"max_completion_tokens": 5}, 5), ({"max_tokens": 3}, 3),
    ({"max_tokens": 3, "max_completion_tokens": 5}, 5), ({"max_completion_tokens": -1, "max_tokens": 3}, None),
])  # fmt: skip
def test_length_fields(client: httpx.Client, fields: dict[str, Any], limit: int | None) -> None:
    """R11."""
    answer = chat(client, **fields)
    if limit is None:
        assert answer["choices"][0]["finish_reason"] == "stop"
    else:
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == limit


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_zero_tokens_are_refused(client: httpx.Client, name: str) -> None:
    assert refused(client, **{name: 0})["param"] == name


def test_too_long_for_the_context(client: httpx.Client) -> None:
    """R12."""
    error = refused(client, [{"role": "user", "content": "word " * 9000}], max_tokens=16)
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in error["message"]
    assert any(int(number) > 9000 for number in error["message"].split() if number.isdigit())


def test_answer_that_does_not_fit(client: httpx.Client) -> None:
    error = refused(client, max_tokens=4096)
    assert error["code"] == "context_length_exceeded"
    assert "4096 in the completion" in error["message"]


@pytest.mark.parametrize("messages", [
    "x", 123, {}, [], ["x"], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": {"text": "x"}}], None,
    [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": ["x"]}], [None],
])  # fmt: skip
def test_bad_messages(client: httpx.Client, messages: object) -> None:
    """R24."""
    assert refused(client, messages)["param"].startswith("messages")


def test_missing_messages(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json={"model": "scripted"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "'messages' is required."


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "hologram"])
def test_other_parts_are_named(client: httpx.Client, kind: str) -> None:
    """R23."""
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {}}]
    assert kind in refused(client, [{"role": "user", "content": parts}])["message"]


def test_text_parts_are_joined(client: httpx.Client) -> None:
    """R23."""
    parts = [
        {"role": "system", "content": [{"type": "text", "text": "You are "}, {"type": "text", "text": "helpful."}]},
        {"role": "user", "content": [{"type": "text", "text": "tell me a "}, {"type": "text", "text": "riddle"}]},
    ]
    plain = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "tell me a riddle"}]
    assert client.prompt_of(messages=parts) == client.prompt_of(messages=plain)
    assert text_of(chat(client, parts)) == text_of(chat(client, plain))


def test_no_parts_are_an_empty_text(client: httpx.Client) -> None:
    assert client.prompt_of(messages=[{"role": "user", "content": []}]) == client.prompt_of(
        messages=[{"role": "user", "content": ""}]
    )


def test_empty_message(client: httpx.Client) -> None:
    """R13."""
    chat(client, [{"role": "user", "content": ""}], max_tokens=4)


@pytest.mark.parametrize("assistant", [
    {}, {"content": None}, {"content": ""}, {"name": None, "refusal": None}, {"content": "One moment."},
])  # fmt: skip
@pytest.mark.parametrize("result", ["22 C", [{"type": "text", "text": "22 C"}]])
def test_history_with_tool_calls(client: httpx.Client, assistant: dict[str, Any], result: object) -> None:
    """R19: this template knows no tools, so they are put in as text."""
    messages = [
        {"role": "user", "content": "Weather in Boston?"},
        {"role": "assistant", "tool_calls": [TOOL_CALL], **assistant},
        {"role": "tool", "tool_call_id": "0", "content": result},
        {"role": "user", "content": "Thanks"},
    ]
    chat(client, messages, max_tokens=8)
    prompt = client.prompt_of(messages=messages)
    assert '{"name": "get_weather", "arguments": {"city": "Boston"}}' in prompt
    assert "22 C" in prompt


def test_history_with_no_tool_calls(client: httpx.Client) -> None:
    messages = [*USER, {"role": "assistant", "content": "Hi.", "tool_calls": []}, {"role": "user", "content": "Bye"}]
    assert "<tool_call>" not in client.prompt_of(messages=messages)


def test_developer_is_system(client: httpx.Client) -> None:
    system, developer = ([{"role": role, "content": "Be brief."}, *USER] for role in ("system", "developer"))
    assert client.prompt_of(messages=system) == client.prompt_of(messages=developer)


@pytest.mark.parametrize("messages", [
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "system", "content": "a"}, *USER, {"role": "system", "content": "b"}, *USER],
])  # fmt: skip
def test_unusual_orders(client: httpx.Client, messages: object) -> None:
    """R22."""
    chat(client, messages, max_tokens=4)


def test_unfinished_message_is_continued(client: httpx.Client) -> None:
    """R25."""
    start = "An apple a day, keeps"
    messages = [*USER, {"role": "assistant", "content": start}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert client.prompt_of(messages=messages, **fields).endswith(start)
    answer = text_of(chat(client, messages, **fields))
    assert start not in answer
    assert text_of(chat(client, messages, **fields, echo=True)) == start + answer
    # `add_generation_prompt` is true by default; left out, it does not contradict.
    assert text_of(chat(client, messages, continue_final_message=True)) == answer


def test_trailing_space_of_the_continued_message_stays(client: httpx.Client) -> None:
    messages = [*USER, {"role": "assistant", "content": "An apple "}]
    assert client.prompt_of(messages=messages, continue_final_message=True).endswith("An apple ")


@pytest.mark.parametrize(
    "bias", [{"999999999": 5, "-1": 3}, {"512": 1}, {"abc": 1}, {"5": 1000}, {str(n): 1 for n in range(2000)}]
)
def test_bad_logit_bias(client: httpx.Client, bias: dict[str, float]) -> None:
    """R14."""
    assert refused(client, logit_bias=bias)["param"] == "logit_bias"


@pytest.mark.parametrize("bias", [{}, {str(number): 1 for number in range(300)}, {"511": -5}])
def test_good_logit_bias(client: httpx.Client, bias: dict[str, float]) -> None:
    chat(client, logit_bias=bias, max_tokens=4)


@pytest.mark.parametrize(
    "fields", [{"stop_token_ids": [512]}, {"allowed_token_ids": [3, 512]}, {"allowed_token_ids": []}]
)
def test_ids_beyond_the_vocabulary(client: httpx.Client, fields: dict[str, Any]) -> None:
    assert refused(client, **fields)["param"] in fields


def test_padded_id_is_taken_and_shows_nothing(client: httpx.Client) -> None:
    """R41: 511 lies beyond the tokenizer, inside the model."""
    answer = chat(client, logit_bias={"511": 100}, max_tokens=4, logprobs=True)
    assert text_of(answer) == ""
    assert [row["token"] for row in answer["choices"][0]["logprobs"]["content"]] == [""] * 4


def test_seed(client: httpx.Client) -> None:
    """R16."""
    fields = {"temperature": 0.9, "max_tokens": 40}
    first = text_of(chat(client, seed=123, **fields))
    chat(client, [{"role": "user", "content": "in between"}], **fields)
    assert text_of(chat(client, seed=123, **fields)) == first
    assert text_of(chat(client, seed=124, **fields)) != first
    assert text_of(chat(client, seed=0, **fields)) == text_of(chat(client, seed=0, **fields))
    assert text_of(chat(client, seed=-1, **fields)) == text_of(chat(client, seed=-1, **fields))
    assert refused(client, seed=18446744073709551616)["param"] == "seed"


def test_logprobs(client: httpx.Client) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=5)
    rows = answer["choices"][0]["logprobs"]["content"]
    assert len(rows) == 5
    for row in rows:
        assert len(row["top_logprobs"]) == 3
        assert row["top_logprobs"] == sorted(row["top_logprobs"], key=lambda entry: -entry["logprob"])
    assert b"".join(bytes(row["bytes"]) for row in rows).decode() == text_of(answer)


def test_no_row_for_the_hidden_end_token(client: httpx.Client) -> None:
    answer = chat(client, logprobs=True)
    assert answer["choices"][0]["finish_reason"] == "stop"
    rows = answer["choices"][0]["logprobs"]["content"]
    assert len(rows) == answer["usage"]["completion_tokens"] - 1
    assert b"".join(bytes(row["bytes"]) for row in rows).decode() == text_of(answer)


def test_vllm_extras(client: httpx.Client) -> None:
    answer = chat(client, return_token_ids=True, prompt_logprobs=1, max_tokens=3, request_id="mine-1")
    assert answer["id"] == "chatcmpl-mine-1"
    ids = client.post("/tokenize", json={"messages": USER}).json()["tokens"]
    assert answer["prompt_token_ids"] == ids
    assert len(answer["choices"][0]["token_ids"]) == 3
    assert [row is None for row in answer["prompt_logprobs"]] == [True] + [False] * (len(ids) - 1)
    assert all(str(token_id) in row for token_id, row in zip(ids[1:], answer["prompt_logprobs"][1:], strict=True))


def test_tokens_as_ids(client: httpx.Client) -> None:
    rows = chat(client, logprobs=True, max_tokens=2, return_tokens_as_token_ids=True)["choices"][0]["logprobs"][
        "content"
    ]
    assert all(row["token"].removeprefix("token_id:").isdigit() for row in rows)


def test_truncated_prompt(client: httpx.Client) -> None:
    assert chat(client, truncate_prompt_tokens=5)["usage"]["prompt_tokens"] == 5
    long = [{"role": "user", "content": "word " * 9000}]
    assert chat(client, long, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 4095
    assert refused(client, truncate_prompt_tokens=0)["param"] == "truncate_prompt_tokens"


def test_model_name_is_kept(client: httpx.Client) -> None:
    assert chat(client, model="org/other-name", max_tokens=1)["model"] == "org/other-name"
    assert client.post("/v1/chat/completions", json={"messages": USER, "max_tokens": 1}).json()["model"] == "scripted"


def test_ignored_fields_are_named(client: httpx.Client) -> None:
    body: dict[str, Any] = {"max_tokens": 1, "zz_top": 1, "user": "me", "größe": 2}
    body["messages"] = [{**USER[0], "prefix": True, "annotations": [], "audio": None}]
    for stream in (False, True):
        answer = client.post("/v1/chat/completions", json={**body, "stream": stream})
        assert answer.headers["x-wllm-ignored"] == "zz_top, gr\\xf6\\xdfe, messages.prefix"


@pytest.mark.parametrize("fields", [
    {"stream_options": {"include_usage": True}}, {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
    {"response_format": {"type": "nonsense"}}, {"n": 0}, {"temperature": 3}, {"prompt_logprobs": 1, "stream": True},
])  # fmt: skip
def test_refusals_name_the_field(client: httpx.Client, fields: dict[str, Any]) -> None:
    error = refused(client, **fields)
    assert next(iter(fields)) in error["message"]

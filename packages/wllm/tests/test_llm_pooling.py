"""`LLM.embed` and `LLM.score`, with tiny models, and what each kind of model refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wllm import LLM, SamplingParams
from wllm_runtime.testing_poolers import SIZE, change_config, save_modules, save_pooler, save_tokenizer

TEXTS = ["a cat", "the dog is here", "no", "zzz"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("embedder")
    save_pooler(folder, "bert")
    save_tokenizer(folder)
    save_modules(folder, "mean_tokens", normalize=True)
    change_config(folder, matryoshka_dimensions=[8])
    with LLM(str(folder), device="cpu", max_num_batched_tokens=16) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Any, Any]]:
    folder = tmp_path_factory.mktemp("cross-encoder")
    model = save_pooler(folder, "bert", "AutoModelForSequenceClassification", num_labels=1)
    tokenizer = save_tokenizer(folder)
    with LLM(str(folder), device="cpu") as loaded:
        yield loaded, model, tokenizer


def vectors(results: Any) -> np.ndarray:
    return np.array([result.outputs.embedding for result in results])


def test_embed(embedder: LLM) -> None:
    results = embedder.embed(TEXTS, use_tqdm=False)
    assert [result.prompt for result in results] == TEXTS
    assert vectors(results).shape == (4, SIZE)
    np.testing.assert_allclose(np.linalg.norm(vectors(results), axis=1), 1, atol=1e-6)
    ids = [result.prompt_token_ids for result in results]
    assert all(row[0] == 2 and row[-1] == 3 for row in ids)
    for again in (embedder.embed(ids, use_tqdm=False), embedder.embed([{"prompt_token_ids": row} for row in ids])):
        np.testing.assert_allclose(vectors(again), vectors(results), atol=1e-6)
        assert [result.prompt for result in again] == [None] * 4
    np.testing.assert_allclose(vectors(embedder.embed(TEXTS[1])), vectors(results)[1:2], atol=1e-6)
    assert embedder.embed([]) == []


def test_what_may_be_asked_of_vectors(embedder: LLM) -> None:
    whole = vectors(embedder.embed(TEXTS, normalize=False))
    short = vectors(embedder.embed(TEXTS, dimensions=8))
    np.testing.assert_allclose(short, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-6)
    (cut,) = embedder.embed("abc " * 40, truncate_prompt_tokens=-1)
    assert len(cut.prompt_token_ids) == 40
    (few,) = embedder.embed([list(range(4, 30))], truncate_prompt_tokens=5)
    assert few.prompt_token_ids == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("abc " * 40, {}, "maximum context length is 40 tokens"),
        ([400], {}, "400, which is not a token id"),
        ("a", {"dimensions": 9}, "dimensions is 9"),
        ("a", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0"),
        ("a", {"truncate_prompt_tokens": 41}, "truncate_prompt_tokens is 41"),
    ],
)
def test_refusals(embedder: LLM, prompt: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        embedder.embed(["a", prompt], **options)
    assert len(embedder.embed("still there")) == 1


def test_score_of_vectors(embedder: LLM) -> None:
    first, *rest = vectors(embedder.embed(TEXTS))
    before = embedder.stats().prompt_tokens_total
    results = embedder.score(TEXTS[0], TEXTS[1:], use_tqdm=False)
    lengths = [len(one.prompt_token_ids) for one in embedder.embed(TEXTS)]
    assert embedder.stats().prompt_tokens_total - before == 2 * sum(lengths), "each text was embedded once"
    np.testing.assert_allclose([result.outputs.score for result in results], rest @ first, atol=1e-6)
    assert {result.outputs.method for result in results} == {"cosine"}
    pairs = embedder.score([TEXTS[0]] * 3, TEXTS[1:])
    assert [pair.outputs.score for pair in pairs] == pytest.approx([one.outputs.score for one in results])
    same = [f"text {letter} {other}" for letter in "abcdefgh" for other in "abcdefgh"]
    assert max(one.outputs.score for one in embedder.score(same, same)) <= 1.0
    with pytest.raises(ValueError, match="2 first texts but 3 second ones"):
        embedder.score(TEXTS[:2], TEXTS[:3])


def test_score_of_pairs(cross_encoder: tuple[LLM, Any, Any]) -> None:
    llm, model, tokenizer = cross_encoder
    results = llm.score("what is it", TEXTS, use_tqdm=False)
    for text, result in zip(TEXTS, results, strict=True):
        pair = tokenizer.encode("what is it", text)
        assert result.prompt_token_ids == pair.ids
        with torch.inference_mode():
            types = torch.tensor([pair.type_ids])
            logits = model(input_ids=torch.tensor([pair.ids]), token_type_ids=types).logits
        assert result.outputs.score == pytest.approx(float(torch.sigmoid(logits)[0, 0]), abs=1e-5)
        assert result.outputs.method == "cross-encoder"
    assert len({result.outputs.score for result in results}) == 4


def test_each_kind_refuses_the_others_work(embedder: LLM, cross_encoder: tuple[LLM, Any, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="writes no text"):
        embedder.generate("x", SamplingParams(max_tokens=1))
    with pytest.raises(ValueError, match="no chat template"):
        embedder.chat([{"role": "user", "content": "x"}])
    with pytest.raises(ValueError, match="its task is 'score'"):
        cross_encoder[0].embed("x")
    save_pooler(tmp_path, "llama", "AutoModelForCausalLM", bos_token_id=2, eos_token_id=3)
    save_tokenizer(tmp_path)
    with LLM(str(tmp_path), device="cpu", num_kv_blocks=8) as writer:
        with pytest.raises(ValueError, match="its task is 'generate'"):
            writer.embed("x")
        with pytest.raises(ValueError, match="needs a cross-encoder or an embedder"):
            writer.score("x", "y")
    with LLM(str(tmp_path), device="cpu", task="embed") as told:
        (result,) = told.embed("x")
        assert np.linalg.norm(result.outputs.embedding) == pytest.approx(1, abs=1e-6)

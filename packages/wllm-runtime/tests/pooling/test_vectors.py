"""Vectors and scores are those of transformers alone on each text, however texts are put together in steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from wllm_runtime.pooling.engine import PoolingEngine
from wllm_runtime.testing_poolers import SIZE, VOCAB_SIZE, change_config, save_modules, save_pooler
from wllm_sched import PooledText

OpenPooler = Callable[..., PoolingEngine]
VectorsOf = Callable[..., np.ndarray]
RNG = random.Random(0)
TEXTS = [[RNG.randrange(4, VOCAB_SIZE) for _ in range(RNG.randint(1, 38))] for _ in range(25)]


@torch.inference_mode()
def reference(model: transformers.PreTrainedModel, mode: str) -> np.ndarray:
    rows = []
    for text in TEXTS:
        hidden = model(input_ids=torch.tensor([text])).last_hidden_state[0]
        pooled = {
            "cls_token": hidden[0],
            "mean_tokens": hidden.mean(dim=0),
            "max_tokens": hidden.amax(dim=0),
            "lasttoken": hidden[-1],
        }
        rows.append(pooled[mode].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens", "max_tokens", "lasttoken"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "llama", "qwen3"])
def test_pooling(tmp_path: Path, open_pooler: OpenPooler, vectors_of: VectorsOf, family: str, mode: str) -> None:
    model = save_pooler(tmp_path, family)
    save_modules(tmp_path, mode)
    engine = open_pooler(tmp_path, skip_tokenizer_init=True, max_num_batched_tokens=100)
    assert engine.model_info.task == "embed"
    np.testing.assert_allclose(vectors_of(engine, TEXTS), reference(model, mode), atol=1e-5)
    assert engine.stats().steps_total > 3 and engine.stats().prompt_tokens_total == sum(map(len, TEXTS))


@pytest.mark.parametrize(("family", "mode"), [("bert", "mean_tokens"), ("qwen3", "lasttoken")])
def test_without_modules_the_kind_of_model_decides(
    tmp_path: Path, open_pooler: OpenPooler, vectors_of: VectorsOf, family: str, mode: str
) -> None:
    model = save_pooler(tmp_path, family)
    engine = open_pooler(tmp_path, skip_tokenizer_init=True)
    wanted = reference(model, mode)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors_of(engine, TEXTS), wanted, atol=1e-5)


def test_a_causal_model_embeds_if_it_is_told_to(tmp_path: Path, open_pooler: OpenPooler, vectors_of: VectorsOf) -> None:
    model = save_pooler(tmp_path, "llama", "AutoModelForCausalLM")
    engine = open_pooler(tmp_path, skip_tokenizer_init=True, task="embed")
    wanted = reference(model.base_model, "lasttoken")
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors_of(engine, TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_an_encoder_under_another_head(
    tmp_path: Path, open_pooler: OpenPooler, vectors_of: VectorsOf, family: str
) -> None:
    model = save_pooler(tmp_path, family, "AutoModelForMaskedLM")
    save_modules(tmp_path, "mean_tokens")
    engine = open_pooler(tmp_path, skip_tokenizer_init=True)
    np.testing.assert_allclose(vectors_of(engine, TEXTS), reference(model.base_model, "mean_tokens"), atol=1e-5)
    rows = {name: reason for name, _, reason in engine.model_info.settings}
    assert "has no place for" in rows["unused_tensors"], "the head is told of"


def test_unit_length_is_the_models_own_unless_asked(
    tmp_path: Path, open_pooler: OpenPooler, vectors_of: VectorsOf
) -> None:
    model = save_pooler(tmp_path, "bert")
    save_modules(tmp_path, "mean_tokens", normalize=True)
    engine = open_pooler(tmp_path, skip_tokenizer_init=True)
    plain = reference(model, "mean_tokens")
    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors_of(engine, TEXTS), unit, atol=1e-5)
    np.testing.assert_allclose(vectors_of(engine, TEXTS, normalize=False), plain, atol=1e-5)


def test_dense_layers(tmp_path: Path, open_pooler: OpenPooler, vectors_of: VectorsOf) -> None:
    model = save_pooler(tmp_path, "bert")
    save_modules(tmp_path, "mean_tokens", extra=["Dense"])
    torch.manual_seed(1)
    dense = torch.nn.Linear(SIZE, 12)
    layer = tmp_path / "2_Dense"
    layer.mkdir()
    settings = {"activation_function": "torch.nn.modules.activation.Tanh"}
    (layer / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    tensors = {f"linear.{name}": value.detach() for name, value in dense.named_parameters()}
    save_file(tensors, layer / "model.safetensors")
    engine = open_pooler(tmp_path, skip_tokenizer_init=True)
    assert engine.model_info.vector_size == 12
    with torch.inference_mode():
        wanted = torch.tanh(dense(torch.tensor(reference(model, "mean_tokens")))).numpy()
    np.testing.assert_allclose(vectors_of(engine, TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("said", "possible"),
    [({"matryoshka_dimensions": [8, 16]}, {8, 16}), ({"is_matryoshka": True}, set(range(1, SIZE + 1))), ({}, set())],
)
def test_shorter_vectors(
    tmp_path: Path,
    open_pooler: OpenPooler,
    vectors_of: VectorsOf,
    said: dict[str, object],
    possible: set[int],
) -> None:
    model = save_pooler(tmp_path, "bert")
    save_modules(tmp_path, "mean_tokens", normalize=True)
    change_config(tmp_path, **said)
    engine = open_pooler(tmp_path, skip_tokenizer_init=True)
    assert set(engine.model_info.vector_dimensions) == possible
    wanted = reference(model, "mean_tokens")[:, :8]
    if possible:
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors_of(engine, TEXTS, dimensions=8), wanted, atol=1e-5)


PAIRS = [PooledText(text, [0] * (len(text) // 2) + [1] * (len(text) - len(text) // 2)) for text in TEXTS]


@pytest.mark.parametrize(
    ("family", "options", "activation"),
    [
        ("bert", {}, torch.sigmoid),
        ("bert", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, torch.clone),
        ("roberta", {}, torch.sigmoid),
        ("qwen3", {}, torch.sigmoid),
        ("llama", {"pad_token_id": None}, torch.sigmoid),
    ],
)
def test_scores(
    tmp_path: Path,
    open_pooler: OpenPooler,
    vectors_of: VectorsOf,
    family: str,
    options: dict[str, object],
    activation: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = save_pooler(tmp_path, family, "AutoModelForSequenceClassification", num_labels=1, **options)
    engine = open_pooler(tmp_path, skip_tokenizer_init=True)
    assert (engine.model_info.task, engine.model_info.vector_size) == ("score", 1)
    types = family in ("bert", "roberta")
    with torch.inference_mode():
        wanted = [
            activation(
                model(
                    input_ids=torch.tensor([pair.token_ids]),
                    **({"token_type_ids": torch.tensor([pair.token_type_ids])} if types else {}),
                ).logits[0]
            ).numpy()
            for pair in PAIRS
        ]
    np.testing.assert_allclose(vectors_of(engine, PAIRS), np.stack(wanted), atol=1e-5)
    assert np.ptp(wanted) > 0.1, "the model tells texts apart"


def test_dummy_weights_need_no_files(tmp_path: Path, open_pooler: OpenPooler, vectors_of: VectorsOf) -> None:
    save_pooler(tmp_path, "bert")
    (tmp_path / "model.safetensors").unlink()
    first, second = (
        vectors_of(open_pooler(tmp_path, skip_tokenizer_init=True, load_format="dummy", seed=3), TEXTS)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)

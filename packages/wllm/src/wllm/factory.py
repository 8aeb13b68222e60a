"""The engine factory that the engine process runs. Imported in that process only: this is where torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wllm_runtime.config import EngineConfig
from wllm_runtime.engine import ModelEngine
from wllm_runtime.open_engine import open_engine
from wllm_sched import ServedEngine


def create_engine(options: Mapping[str, Any]) -> ServedEngine:
    """Build the engine from the fields of an `EngineConfig`, ready for requests of every kind."""
    engine = open_engine(EngineConfig(**options))
    if isinstance(engine, ModelEngine):
        engine.load_grammars()
    return engine

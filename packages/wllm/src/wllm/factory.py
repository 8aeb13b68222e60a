"""The engine factory that the engine process runs. Imported in that process only: this is where torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wllm_runtime.config import EngineConfig
from wllm_runtime.engine import ModelEngine
from wllm_runtime.engine import create_engine as create_model_engine


def create_engine(options: Mapping[str, Any]) -> ModelEngine:
    """Build the engine from the fields of an `EngineConfig`."""
    return create_model_engine(EngineConfig(**options))

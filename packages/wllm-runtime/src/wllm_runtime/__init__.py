"""Models, weights, sampler, model runner and engine of wLLM.

`import wllm_runtime` loads no torch: the API process builds an `EngineConfig` and only the engine process pays for the
rest, through `wllm_runtime.engine.create_engine`.
"""

from __future__ import annotations

from wllm_runtime.config import EngineConfig
from wllm_runtime.errors import (
    ConfigError,
    OutOfMemory,
    RuntimeLibraryError,
    StoreError,
    UnsupportedModel,
    WeightsError,
)

__all__ = [
    "ConfigError",
    "EngineConfig",
    "OutOfMemory",
    "RuntimeLibraryError",
    "StoreError",
    "UnsupportedModel",
    "WeightsError",
]

"""`open_engine`: the engine for a model, whatever it is: one that writes text, or one that pools."""

from __future__ import annotations

from wllm_runtime.checkpoint import locate, task_of
from wllm_runtime.checkpoint.tasks import FoundTask
from wllm_runtime.config import EngineConfig
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_runtime.pooling.engine import PoolingEngine


def open_engine(config: EngineConfig) -> ModelEngine | PoolingEngine:
    """Open the model and load it for its task, or for `config.task`; raises as `create_engine` does."""
    path = locate(config.model, revision=config.revision, load_format=config.load_format)
    task = task_of(path) if config.task == "auto" else FoundTask(config.task, "as given")
    if task.task == "generate":
        return create_engine(config, path)
    # What it imports takes seconds, and models that write text need none of it.
    from wllm_runtime.pooling.opening import create_pooling_engine

    return create_pooling_engine(config, path, task)

"""A model that is loaded: its text side, with the engine that runs it and the series that it is counted in."""

from __future__ import annotations

from wllm_api.client import EngineClient
from wllm_api.metrics import ModelMetrics
from wllm_api.model import ServedModel
from wllm_api.settings import Parsers
from wllm_sched.messages import ModelInfo


class LoadedModel(ServedModel):
    """What a request works with; `grammars` are loaded for a model that writes text."""

    def __init__(self, info: ModelInfo, parsers: Parsers, *, engine: EngineClient, metrics: ModelMetrics) -> None:
        super().__init__(info, parsers)
        self.engine = engine
        self.metrics = metrics
        if info.task == "generate":
            # Now, since it holds up all streams.
            self.grammars.load()

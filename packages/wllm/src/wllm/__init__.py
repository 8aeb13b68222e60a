"""wLLM: a native Windows and Linux LLM inference server.

`from wllm import LLM, SamplingParams` runs a model in this process; `wllm serve` runs the server. Importing this
package loads no torch: the names below are resolved when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wllm.llm import LLM
    from wllm.outputs import (
        CompletionOutput,
        EmbeddingRequestOutput,
        Logprob,
        RequestOutput,
        ScoringRequestOutput,
    )
    from wllm_sched import SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
]

_HOMES = {
    "LLM": "wllm.llm",
    "CompletionOutput": "wllm.outputs",
    "EmbeddingRequestOutput": "wllm.outputs",
    "Logprob": "wllm.outputs",
    "RequestOutput": "wllm.outputs",
    "ScoringRequestOutput": "wllm.outputs",
    "SamplingParams": "wllm_sched",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'wllm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

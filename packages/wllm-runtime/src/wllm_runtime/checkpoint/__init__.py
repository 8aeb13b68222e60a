"""Model files: the only part of wLLM that opens them.

`open_checkpoint` takes a hub id, a directory of safetensors files or a GGUF file and returns the configuration, the
tokenizer as text and a reader of weights, which fills tensors on any device. It builds no model and never runs code
from a checkpoint. Called by the engine process while it loads.
"""

from wllm_runtime.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpoint,
    DownloadFailed,
    ModelNotFound,
    UnsupportedCheckpoint,
)
from wllm_runtime.checkpoint.interface import Checkpoint, LoadFormat, WeightReader
from wllm_runtime.checkpoint.opening import locate, open_checkpoint
from wllm_runtime.checkpoint.pooling import PoolingCheckpoint, open_pooling_checkpoint
from wllm_runtime.checkpoint.tasks import task_of

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "DamagedCheckpoint",
    "DownloadFailed",
    "LoadFormat",
    "ModelNotFound",
    "PoolingCheckpoint",
    "UnsupportedCheckpoint",
    "WeightReader",
    "locate",
    "open_checkpoint",
    "open_pooling_checkpoint",
    "task_of",
]

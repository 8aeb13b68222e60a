"""The configuration of a model directory, and which families wLLM runs.

Owns the decision whether a config.json is one that the engine can serve. No code from the directory runs.
"""

from __future__ import annotations

from pathlib import Path

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, ModelNotFound, UnsupportedCheckpoint
from wllm_runtime.checkpoint.jsonfile import read_object
from wllm_runtime.checkpoint.model_config import MODEL_TYPES, ModelConfig


def read_config(directory: Path) -> ModelConfig:
    """The configuration in `directory`; raises a `CheckpointError` for a family or quantisation we do not run."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelNotFound(
            f"{directory} holds no config.json, so it is no model directory (found: {_listing(directory)}). "
            "Give a directory in Hugging Face format, a hub id or a .gguf file."
        )
    raw = read_object(path)
    model_type = raw.get("model_type")
    if model_type not in MODEL_TYPES:
        nested = " (a text model inside a multimodal wrapper)" if "text_config" in raw else ""
        raise UnsupportedCheckpoint(
            f"{path} describes the architecture {model_type!r}{nested}, {raw.get('architectures')!r}, which wLLM does "
            f"not run. Supported: {', '.join(MODEL_TYPES)}."
        )
    if model_type == "mistral" and "layer_types" in raw:
        raise UnsupportedCheckpoint(
            f"{path} gives a mistral model layer_types, which makes it a Ministral, and that wLLM does not run. "
            f"Supported: {', '.join(MODEL_TYPES)}."
        )
    quantization = raw.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise UnsupportedCheckpoint(
            f"{path} describes weights quantised with {method!r}, which wLLM does not run from safetensors yet. "
            "Use the unquantised model or a GGUF file of it."
        )
    try:
        return ModelConfig.from_values(str(model_type), raw)
    except ValueError as error:
        raise DamagedCheckpoint(f"{path} describes no model: {error}. Correct the field.") from error


def _listing(directory: Path) -> str:
    names = sorted(entry.name for entry in directory.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "nothing"

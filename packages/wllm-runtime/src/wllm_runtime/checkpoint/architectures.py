"""The configuration of a model directory, and which families wLLM runs.

Owns the decision whether a config.json is one that the engine can serve. transformers parses the file; no model class
of it is ever loaded, and no code from the directory runs.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, ModelNotFound, UnsupportedCheckpoint
from wllm_runtime.checkpoint.jsonfile import read_object

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def read_config(directory: Path) -> PretrainedConfig:
    """The configuration in `directory`; raises a `CheckpointError` for a family or quantisation we do not run."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelNotFound(
            f"{directory} holds no config.json, so it is no model directory (found: {_listing(directory)}). "
            "Give a directory in Hugging Face format, a hub id or a .gguf file."
        )
    raw = read_object(path)
    model_type = raw.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        nested = " (a text model inside a multimodal wrapper)" if "text_config" in raw else ""
        raise UnsupportedCheckpoint(
            f"{path} describes the architecture {model_type!r}{nested}, {raw.get('architectures')!r}, which wLLM does "
            f"not run. Supported: {', '.join(SUPPORTED_MODEL_TYPES)}."
        )
    quantization = raw.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise UnsupportedCheckpoint(
            f"{path} describes weights quantised with {method!r}, which wLLM does not run from safetensors yet. "
            "Use the unquantised model or a GGUF file of it."
        )
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises its validators' own kinds
        raise DamagedCheckpoint(f"{path} was refused by transformers: {error}. Correct the named field.") from error
    return config


def _listing(directory: Path) -> str:
    names = sorted(entry.name for entry in directory.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "nothing"

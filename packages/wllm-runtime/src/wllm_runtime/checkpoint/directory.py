"""A model directory in Hugging Face format, opened."""

from __future__ import annotations

from pathlib import Path

from wllm_runtime.checkpoint.architectures import read_config
from wllm_runtime.checkpoint.generation import default_sampling, merge_token_ids, read_generation_config
from wllm_runtime.checkpoint.interface import Checkpoint, LoadFormat
from wllm_runtime.checkpoint.safetensors_reader import SafetensorsReader
from wllm_runtime.checkpoint.tokenizer_files import read_tokenizer_files


def open_directory(directory: Path, *, load_format: LoadFormat, skip_tokenizer: bool) -> Checkpoint:
    """Opens `directory`; raises a `CheckpointError` that names the file at fault."""
    config = read_config(directory)
    files = read_tokenizer_files(directory, skip_tokenizer=skip_tokenizer)
    generation = read_generation_config(directory)
    bos = files.token_ids.get("bos_token", config.bos_token_id)
    return Checkpoint(
        path=directory,
        format="safetensors",
        config=config,
        tokenizer_json=files.tokenizer_json,
        chat_template=files.chat_template,
        special_tokens=files.special_tokens,
        bos_token_id=bos,
        eos_token_ids=merge_token_ids(
            generation.get("eos_token_id"), config.eos_token_id, files.token_ids.get("eos_token")
        ),
        weights=None if load_format == "dummy" else SafetensorsReader(directory),
        default_sampling=default_sampling(generation),
    )

"""A model directory opened for pooling: an embedder or a scorer of pairs.

Like `open_checkpoint` for models that write text: plain data and a reader of weights. What a config.json of these many
families means is for transformers to say; here it stays an object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, ModelNotFound, UnsupportedCheckpoint
from wllm_runtime.checkpoint.interface import LoadFormat, WeightReader
from wllm_runtime.checkpoint.jsonfile import read_object
from wllm_runtime.checkpoint.safetensors_reader import SafetensorsReader
from wllm_runtime.checkpoint.sentence_modules import SentenceModules, read_modules
from wllm_runtime.checkpoint.tokenizer_files import TokenizerFiles, read_tokenizer_files


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A linear layer behind the pooling: `weight` [out, in], `bias` [out], and the name of torch's activation class."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    activation: str


@dataclass(frozen=True)
class PoolingCheckpoint:
    """A model on disk, opened; `values` is its config.json, `weights` None for dummy loading."""

    path: Path
    values: Mapping[str, object]
    modules: SentenceModules
    dense: tuple[DenseLayer, ...]
    tokenizer: TokenizerFiles
    weights: WeightReader | None


def open_pooling_checkpoint(directory: Path, *, load_format: LoadFormat, skip_tokenizer: bool) -> PoolingCheckpoint:
    """Opens `directory`; raises a `CheckpointError` that names the file at fault."""
    if not directory.is_dir():
        raise UnsupportedCheckpoint(
            f"{directory} is a GGUF file, and embedding and scoring models are run from directories in Hugging Face "
            "format only. Give such a directory or a hub id."
        )
    modules = read_modules(directory)
    path = modules.transformer / "config.json"
    if not path.is_file():
        raise ModelNotFound(f"{modules.transformer} holds no config.json, so it is no model directory. Check the path.")
    values = read_object(path)
    _refuse_foreign_code(values, path)
    tokenizer = read_tokenizer_files(modules.transformer, skip_tokenizer=skip_tokenizer)
    if modules.lower_case and tokenizer.tokenizer_json is not None:
        tokenizer = _lowering(tokenizer)
    return PoolingCheckpoint(
        path=directory,
        values=values,
        modules=modules,
        dense=tuple(map(_read_dense, modules.dense)),
        tokenizer=tokenizer,
        weights=None if load_format == "dummy" else SafetensorsReader(modules.transformer),
    )


def _refuse_foreign_code(values: Mapping[str, object], path: Path) -> None:
    code = values.get("auto_map")
    if isinstance(code, dict) and any(name.startswith("AutoModel") for name in code):
        raise UnsupportedCheckpoint(
            f"{path} asks for code that comes with the model ({', '.join(map(str, code.values()))}), and wLLM never "
            "runs such code. Use a model that transformers knows by itself."
        )
    quantization = values.get("quantization_config")
    if quantization is not None:
        raise UnsupportedCheckpoint(
            f"{path} describes quantised weights, which wLLM does not run in an embedding or scoring model. Use the "
            "unquantised model."
        )


def _lowering(files: TokenizerFiles) -> TokenizerFiles:
    tokenizer = json.loads(files.tokenizer_json or "")
    steps = [{"type": "Lowercase"}, *filter(None, [tokenizer.get("normalizer")])]
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": steps}
    text = json.dumps(tokenizer, ensure_ascii=False)
    return TokenizerFiles(text, files.chat_template, files.special_tokens, files.token_ids)


def _read_dense(folder: Path) -> DenseLayer:
    activation = str(read_object(folder / "config.json").get("activation_function", "torch.nn.modules.activation.Tanh"))
    reader = SafetensorsReader(folder)
    try:
        names = set(reader.names())
        if "linear.weight" not in names:
            raise DamagedCheckpoint(f"{folder} holds no 'linear.weight'. Fetch the whole model again.")
        bias = reader.read("linear.bias").float() if "linear.bias" in names else None
        return DenseLayer(reader.read("linear.weight").float(), bias, activation.rpartition(".")[2])
    finally:
        reader.close()

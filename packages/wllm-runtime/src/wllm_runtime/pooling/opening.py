"""From an `EngineConfig` to a running `PoolingEngine`: open, load, check the sizes, say what was resolved."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from wllm_runtime.checkpoint import CheckpointError, PoolingCheckpoint, open_pooling_checkpoint
from wllm_runtime.checkpoint.tasks import FoundTask
from wllm_runtime.config import EngineConfig
from wllm_runtime.engine import open_gpu
from wllm_runtime.errors import ConfigError, RuntimeLibraryError, UnsupportedModel
from wllm_runtime.pooling.encoder import Encoder
from wllm_runtime.pooling.engine import Head, PoolingEngine, longest_rows
from wllm_runtime.pooling.heads import EmbeddingHead, ScoringHead
from wllm_runtime.settings import DTYPES, Settings, resolve_device, resolve_dtype, resolve_sizes
from wllm_sched import ModelInfo, PooledText, Task

# What only a model that writes text can make use of.
_OF_GENERATION = (
    *("block_size", "num_kv_blocks", "enable_prefix_caching", "kv_cache_dtype", "kv_offload_gib"),
    *("pipeline_depth", "max_stall_ms", "step_wait", "override_generation_config"),
)


def create_pooling_engine(config: EngineConfig, directory: Path, task: FoundTask) -> PoolingEngine:
    """Load the model in `directory` for `task`.

    Raises `CheckpointError`, `UnsupportedModel`, `WeightsError`, `ConfigError` or `OutOfMemory`.
    """
    _refuse_meaningless(config, task)
    settings = Settings()
    with settings.phase("checkpoint"):
        checkpoint = open_pooling_checkpoint(
            directory, load_format=config.load_format, skip_tokenizer=config.skip_tokenizer_init
        )
    settings.add("model", directory.name, "safetensors")
    settings.add("task", task.task, task.reason)
    device = resolve_device(config, settings)
    dtype = resolve_dtype(config, _dtype(checkpoint.values), device, settings)
    gpu = open_gpu(device, config)
    fits = gpu.out_of_memory_means("the weights do not fit") if gpu else nullcontext()
    with settings.phase("weights"), fits:
        encoder, head = _built(checkpoint, task.task, device, dtype, config.seed)
    settings.add_weights(encoder.weight_bytes, is_random=checkpoint.weights is None)
    if encoder.unused:
        names = ", ".join(encoder.unused[:4]) + (", ..." if len(encoder.unused) > 4 else "")
        settings.add("unused_tensors", len(encoder.unused), f"{encoder.architecture} has no place for {names}")
    settings.add("pooling" if task.task == "embed" else "activation", *head.description)
    normalizes = task.task == "embed" and (checkpoint.modules.normalize or checkpoint.modules.pooling is None)
    if task.task == "embed":
        settings.add("unit_length", "yes" if normalizes else "no", "where a request does not say")
        settings.add("embedding_size", head.size, "numbers of a vector")
    if checkpoint.modules.prompts:
        names = ", ".join(checkpoint.modules.prompts)
        settings.add("prompts", names, "the model was trained with these; requests write them into their texts")
    longest = _longest(config, checkpoint, encoder, settings)
    max_texts, max_tokens = resolve_sizes(config, gpu.at_start.free if gpu else None, settings)
    if gpu is not None:
        rows = [PooledText([0] * length) for length in longest_rows(max_tokens, longest)]
        with settings.phase("rehearsal"):
            gpu.peak_of(lambda: _run(head, rows))
    settings.add_start()
    files = checkpoint.tokenizer
    end = files.token_ids.get("eos_token")
    info = ModelInfo(
        model=config.model,
        architecture=encoder.architecture,
        tokenizer_json=files.tokenizer_json,
        chat_template=None,
        special_tokens=files.special_tokens,
        eos_token_ids=() if end is None else (end,),
        bos_token_id=files.token_ids.get("bos_token"),
        vocab_size=encoder.vocab_size,
        max_model_len=longest,
        num_kv_blocks=0,
        block_size=config.block_size,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        settings=tuple(settings.rows),
        num_parameters=encoder.num_parameters,
        weight_bytes=encoder.weight_bytes,
        task=task.task,
        vector_size=head.size,
        vector_dimensions=_dimensions(checkpoint.values, head.size) if task.task == "embed" else (),
        restart_options={"device": device.type},
    )
    return PoolingEngine(head, info, max_texts=max_texts, max_tokens=max_tokens, normalizes=normalizes, gpu=gpu)


def _refuse_meaningless(config: EngineConfig, task: FoundTask) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in _OF_GENERATION:
        value = getattr(config, name)
        if value != defaults[name]:
            raise ConfigError(
                f"{name}={value!r} means nothing to a model of the task {task.task!r} ({task.reason}), which has no KV "
                "cache and samples no tokens; leave it out"
            )


def _built(
    checkpoint: PoolingCheckpoint, task: Task, device: torch.device, dtype: torch.dtype, seed: int
) -> tuple[Encoder, EmbeddingHead | ScoringHead]:
    # An architecture's name does not tell whether text is all that it takes. One token does.
    try:
        encoder = Encoder(checkpoint, task, device, dtype, seed)
        head = EmbeddingHead(encoder, checkpoint) if task == "embed" else ScoringHead(encoder, checkpoint)
        head.vectors([PooledText([0])])
    except (RuntimeLibraryError, CheckpointError, torch.cuda.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"{checkpoint.path} (model_type {checkpoint.values.get('model_type')!r}) makes no vectors of text alone: "
            f"{type(error).__name__}: {error}. Use an embedding model or a cross-encoder of texts."
        ) from error
    return encoder, head


def _run(head: Head, rows: Sequence[PooledText]) -> None:
    head.vectors(rows)


def _dtype(values: Mapping[str, object]) -> torch.dtype | None:
    name = values.get("dtype") or values.get("torch_dtype")
    return DTYPES.get(name.removeprefix("torch.")) if isinstance(name, str) else None


def _longest(config: EngineConfig, checkpoint: PoolingCheckpoint, encoder: Encoder, settings: Settings) -> int:
    wanted = config.max_model_len
    if wanted is not None and wanted > encoder.longest:
        raise ConfigError(
            f"max_model_len={wanted} is more than the {encoder.longest} positions that the model has; give at most that"
        )
    own = checkpoint.modules.longest
    if wanted is not None:
        longest, reason = wanted, "as given"
    elif own is not None and own < encoder.longest:
        longest, reason = own, f"the authors' max_seq_length; the model has {encoder.longest} positions"
    else:
        longest, reason = encoder.longest, "the model's positions"
    settings.add("max_model_len", longest, reason)
    return longest


def _dimensions(values: Mapping[str, object], size: int) -> Sequence[int]:
    # A vector can be cut only where training put the meaning in front; these two names say so.
    listed = values.get("matryoshka_dimensions")
    if isinstance(listed, list):
        return tuple(sorted(one for one in listed if isinstance(one, int) and 0 < one <= size))
    return range(1, size + 1) if values.get("is_matryoshka") is True else ()

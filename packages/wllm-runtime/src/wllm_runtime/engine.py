"""`create_engine`: from an `EngineConfig` to a running engine. The function that the engine process runs."""

from __future__ import annotations

import dataclasses

import torch

from wllm_cache import BlockPool
from wllm_runtime.buffers import SlotTables
from wllm_runtime.checkpoint import Checkpoint, open_checkpoint
from wllm_runtime.config import EngineConfig
from wllm_runtime.kv_cache import KVCache
from wllm_runtime.memory import MIB, MemoryPlan, plan_memory
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.models.loading import build_model
from wllm_runtime.models.rope import RopeConfig
from wllm_runtime.runner import ModelRunner
from wllm_runtime.sampler import Sampler
from wllm_runtime.settings import Settings, resolve_device, resolve_dtype, resolve_sizes
from wllm_sched import EngineLoop, ModelInfo, Scheduler, SchedulerConfig


class ModelEngine(EngineLoop):
    """An engine loop over a real model; one thread calls everything."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, model_info: ModelInfo, depth: int) -> None:
        super().__init__(scheduler, runner, depth=depth)
        self._model_runner = runner
        self._model_info = model_info

    @property
    def model_info(self) -> ModelInfo:
        """Facts about the model."""
        return self._model_info

    def close(self) -> None:
        """Finish what is in flight and release the model."""
        super().close()
        self._model_runner.close()


def create_engine(config: EngineConfig) -> ModelEngine:
    """Open the checkpoint, load the model and lay out the KV cache.

    Raises `CheckpointError`, `UnsupportedModel`, `WeightsError`, `ConfigError` or `OutOfMemory`.
    """
    settings = Settings()
    checkpoint = open_checkpoint(
        config.model,
        revision=config.revision,
        load_format=config.load_format,
        skip_tokenizer=config.skip_tokenizer_init,
    )
    settings.add("model", checkpoint.path.name, checkpoint.format)
    decoder_config = _decoder_config(checkpoint)
    device = resolve_device(config, settings)
    dtype = resolve_dtype(config, checkpoint.config.dtype, device, settings)
    model = build_model(decoder_config, checkpoint, device, dtype, config.seed)
    num_seqs, batched_tokens = resolve_sizes(config, device, settings)
    memory = plan_memory(
        config,
        device=device,
        bytes_per_token=decoder_config.kv_elements_per_token * dtype.itemsize,
        context_len=decoder_config.rope.longest_context,
        max_num_seqs=num_seqs,
    )
    settings.add("kv_blocks", memory.num_kv_blocks, f"{memory.kv_bytes // MIB:,} MiB; {memory.reason_blocks}")
    settings.add("max_model_len", memory.max_model_len, memory.reason_model_len)
    caching = "on" if config.enable_prefix_caching else "off"
    settings.add("prefix_caching", caching, "a later request that begins alike skips its prefill")
    settings.add("pipeline_depth", config.pipeline_depth, "steps in flight")
    info = _model_info(config, checkpoint, decoder_config, memory, device, dtype, settings)
    scheduler = _build_scheduler(config, info, memory, decoder_config.rope, num_seqs, batched_tokens)
    runner = _build_runner(model, memory, num_seqs, info, device, dtype)
    return ModelEngine(scheduler, runner, info, config.pipeline_depth)


def _decoder_config(checkpoint: Checkpoint) -> DecoderConfig:
    config = DecoderConfig.from_pretrained(checkpoint.config)
    factors = checkpoint.rope_freq_factors
    if factors is None:
        return config
    return dataclasses.replace(config, rope=dataclasses.replace(config.rope, freq_factors=tuple(factors.tolist())))


def _build_scheduler(
    config: EngineConfig,
    info: ModelInfo,
    memory: MemoryPlan,
    rope: RopeConfig,
    num_seqs: int,
    batched_tokens: int,
) -> Scheduler:
    scheduler_config = SchedulerConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=batched_tokens,
        max_model_len=memory.max_model_len,
        enable_prefix_caching=config.enable_prefix_caching,
        eos_token_ids=info.eos_token_ids,
        vocab_size=info.vocab_size,
        max_stall_ms=config.max_stall_ms,
        length_salt_above=rope.max_position_embeddings if rope.depends_on_length else None,
    )
    return Scheduler(scheduler_config, BlockPool(memory.num_kv_blocks, memory.block_size))


def _build_runner(
    model: Decoder,
    memory: MemoryPlan,
    num_seqs: int,
    info: ModelInfo,
    device: torch.device,
    dtype: torch.dtype,
) -> ModelRunner:
    config = model.config
    kv = KVCache.allocate(config, memory.num_kv_blocks, memory.block_size, dtype, device)
    tables = SlotTables(num_seqs, memory.max_model_len, memory.block_size, device)
    sampler = Sampler(tables, config.vocab_size, info.eos_token_ids)
    return ModelRunner(model, kv.data, tables, sampler)


def _model_info(
    config: EngineConfig,
    checkpoint: Checkpoint,
    decoder_config: DecoderConfig,
    memory: MemoryPlan,
    device: torch.device,
    dtype: torch.dtype,
    settings: Settings,
) -> ModelInfo:
    sampling = {**checkpoint.default_sampling, **(config.override_generation_config or {})}
    settings.add(
        "default_sampling",
        ", ".join(f"{name} {value:g}" for name, value in sampling.items()) or "temperature 1",
        "where a request is silent",
    )
    return ModelInfo(
        model=config.model,
        architecture=decoder_config.architecture,
        tokenizer_json=checkpoint.tokenizer_json,
        chat_template=checkpoint.chat_template,
        special_tokens=checkpoint.special_tokens,
        eos_token_ids=checkpoint.eos_token_ids,
        bos_token_id=checkpoint.bos_token_id,
        vocab_size=decoder_config.vocab_size,
        max_model_len=memory.max_model_len,
        num_kv_blocks=memory.num_kv_blocks,
        block_size=memory.block_size,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        default_sampling=sampling,
        settings=tuple(settings.rows),
    )

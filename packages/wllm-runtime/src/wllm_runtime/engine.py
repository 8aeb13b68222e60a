"""`create_engine`: from an `EngineConfig` to a running engine. The function that the engine process runs."""

from __future__ import annotations

import dataclasses

from wllm_runtime.assembly import Assembly
from wllm_runtime.checkpoint import Checkpoint, open_checkpoint
from wllm_runtime.config import EngineConfig
from wllm_runtime.gpu_memory import GpuMemory, Needs
from wllm_runtime.memory import host_budget, plan_memory
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.models.loading import build_model
from wllm_runtime.runner import ModelRunner
from wllm_runtime.settings import Settings, resolve_device, resolve_dtype, resolve_kv_dtype, resolve_sizes, resolve_wait
from wllm_sched import EngineLoop, ModelInfo, Scheduler


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
    """Open the checkpoint, load the model, divide the memory and lay out the KV cache.

    Raises `CheckpointError`, `UnsupportedModel`, `WeightsError`, `ConfigError` or `OutOfMemory`.
    """
    settings = Settings()
    with settings.phase("checkpoint"):
        checkpoint = open_checkpoint(
            config.model,
            revision=config.revision,
            load_format=config.load_format,
            skip_tokenizer=config.skip_tokenizer_init,
        )
        settings.add("model", checkpoint.path.name, checkpoint.format)
        decoder_config = _decoder_config(checkpoint)
    with settings.phase("device"):
        device = resolve_device(config, settings)
        dtype = resolve_dtype(config, checkpoint.config.dtype, device, settings)
        kv_dtype = resolve_kv_dtype(config, dtype, device, settings)
        gpu = GpuMemory(device, config.gpu_memory_utilization) if device.type == "cuda" else None
    num_seqs, num_tokens = resolve_sizes(config, gpu.at_start.free if gpu else None, settings)
    with settings.phase("weights"):
        model = build_model(decoder_config, checkpoint, device, dtype, config.seed)
    assembly = Assembly(
        config=config,
        checkpoint=checkpoint,
        model=model,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_tokens,
        spin=resolve_wait(config, device, settings),
    )
    memory = plan_memory(
        config,
        gpu.budget(Needs(gpu.held(), 0, 0, 0, gpu.outside_of_torch())) if gpu else host_budget(),
        bytes_per_token=assembly.bytes_per_token,
        context_len=decoder_config.rope.longest_context,
        max_num_seqs=num_seqs,
    )
    settings.rows += memory.rows
    caching = "on" if config.enable_prefix_caching else "off"
    settings.add("prefix_caching", caching, "a later request that begins alike skips its prefill")
    settings.add("pipeline_depth", config.pipeline_depth, "steps in flight")
    settings.add_sampling({**checkpoint.default_sampling, **(config.override_generation_config or {})})
    with settings.phase("kv cache"):
        runner = assembly.runner(memory.num_kv_blocks, memory.max_model_len, num_seqs)
    settings.add_start()
    return ModelEngine(assembly.scheduler(memory), runner, assembly.model_info(memory, settings), config.pipeline_depth)


def _decoder_config(checkpoint: Checkpoint) -> DecoderConfig:
    config = DecoderConfig.from_pretrained(checkpoint.config)
    factors = checkpoint.rope_freq_factors
    if factors is None:
        return config
    return dataclasses.replace(config, rope=dataclasses.replace(config.rope, freq_factors=tuple(factors.tolist())))

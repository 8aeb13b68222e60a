"""`create_engine`: from an `EngineConfig` to a running engine. The function that the engine process runs."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch

from wllm_kernels import check_gpu
from wllm_runtime.assembly import Assembly
from wllm_runtime.checkpoint import open_checkpoint
from wllm_runtime.config import EngineConfig
from wllm_runtime.device_check import check_device
from wllm_runtime.gpu_memory import GpuMemory
from wllm_runtime.grammars import Grammars
from wllm_runtime.memory import MemoryPlan, host_budget, longest_wanted, plan_memory
from wllm_runtime.models.loading import build_model, decoder_config, weight_bytes
from wllm_runtime.progress import progress_bar
from wllm_runtime.runner import ModelRunner
from wllm_runtime.settings import Settings, resolve_device, resolve_dtype, resolve_kv_dtype, resolve_sizes, resolve_wait
from wllm_runtime.step_limit import resolve_step_limit
from wllm_sched import EngineLoop, EngineStats, ModelInfo, Scheduler, TokenEvent

_LOG = logging.getLogger(__name__)


class ModelEngine(EngineLoop):
    """An engine loop over a real model; one thread calls everything. `gpu` gets its memory back at the end."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        model_info: ModelInfo,
        depth: int,
        gpu: GpuMemory | None,
        grammars: Grammars | None,
    ) -> None:
        super().__init__(scheduler, runner, depth=depth)
        self._model_runner = runner
        self._runner_stats = runner.stats()
        self._model_info = model_info
        self._gpu = gpu
        self._grammars = grammars

    @property
    def model_info(self) -> ModelInfo:
        """Facts about the model."""
        return self._model_info

    def check_device(self) -> None:
        """Raise `DeviceLost` unless the device still computes; waits for what it is at."""
        check_device(torch.device(self._model_info.device))

    def step(self) -> list[TokenEvent]:
        """A step of `EngineLoop`; raises `DeviceLost` for whatever a lost device makes it raise."""
        try:
            return super().step()
        except Exception:
            self.check_device()
            raise

    def load_grammars(self) -> None:
        """Load what answers under a grammar need, so that no running answer waits for the first of them."""
        if self._grammars is not None:
            self._grammars.load()

    def stats(self) -> EngineStats:
        """Counters now."""
        if not self._closed:
            self._runner_stats = self._model_runner.stats()
        return dataclasses.replace(
            super().stats(),
            graph_replays_total=self._runner_stats.graph_replays,
            eager_steps_total=self._runner_stats.eager_steps,
            graph_failures_total=self._runner_stats.graph_failures,
            gpu_spilled_bytes=self._gpu.spilled() if self._gpu else 0,
        )

    def close(self) -> None:
        """Finish what is in flight and release the model with its memory."""
        if self._closed:
            return
        with ExitStack() as behind:  # whatever of this fails, the rest is done
            behind.callback(self._release)
            behind.callback(self._model_runner.close)
            if self._grammars is not None:
                self._grammars.close()
            super().close()

    def _release(self) -> None:
        self._runner_stats = self._model_runner.stats()
        # The last references to model, KV cache and graphs, which steps that nobody could wait for hold too; an engine
        # that is closed launches nothing.
        self._in_flight.clear()
        del self._model_runner, self.runner
        if self._gpu is not None:
            self._gpu.release()


def create_engine(config: EngineConfig, path: Path | None = None) -> ModelEngine:
    """Open the checkpoint, load the model, divide the memory, and make ready: no request waits for a graph.

    `path` is where `config.model` lies, if that is known already. Raises `CheckpointError`, `UnsupportedModel`,
    `WeightsError`, `ConfigError`, `OutOfMemory` or, for a GPU that cannot run models, wllm-kernels' `NoDeviceCode`.
    """
    settings = Settings()
    with settings.phase("checkpoint"):
        checkpoint = open_checkpoint(
            path or config.model,
            revision=config.revision,
            load_format=config.load_format,
            skip_tokenizer=config.skip_tokenizer_init,
        )
        settings.add("model", checkpoint.path.name, checkpoint.format)
        model_config = decoder_config(checkpoint)
    longest = longest_wanted(config, model_config.rope.longest_context)
    with settings.phase("device"):
        device = resolve_device(config, settings)
        dtype = resolve_dtype(config, checkpoint.config.dtype, device, settings)
        kv_dtype = resolve_kv_dtype(config, dtype, device, settings)
        gpu = open_gpu(device, config)
        check_gpu(device)
    num_seqs, num_tokens = resolve_sizes(config, gpu.at_start.free if gpu else None, settings)
    num_bytes = weight_bytes(model_config, dtype)
    if gpu is not None:
        gpu.expect(num_bytes)
    with settings.phase("weights"), gpu.out_of_memory_means("the weights do not fit") if gpu else nullcontext():
        model = build_model(model_config, checkpoint, device, dtype, config.seed)
    settings.add_weights(num_bytes, is_random=checkpoint.weights is None)
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
        max_step_ms=resolve_step_limit(device, settings),
    )
    with settings.phase("memory plan"):
        memory = plan_memory(
            config,
            gpu.budget(assembly.needs(gpu, longest)) if gpu else host_budget(),
            bytes_per_token=assembly.bytes_per_token,
            context_len=model_config.rope.longest_context,
            max_num_seqs=num_seqs,
        )
    settings.rows += memory.rows
    caching = "on" if config.enable_prefix_caching else "off"
    settings.add("prefix_caching", caching, "a later request that begins alike skips its prefill")
    if config.kv_offload_gib:
        settings.add_host_blocks(assembly.num_host_blocks, memory.bytes_per_block)
    settings.add("pipeline_depth", config.pipeline_depth, "steps in flight")
    settings.add_sampling({**checkpoint.default_sampling, **(config.override_generation_config or {})})
    with settings.phase("kv cache"), gpu.out_of_memory_means("the KV cache does not fit") if gpu else nullcontext():
        runner = assembly.runner(
            memory.num_kv_blocks,
            memory.max_model_len,
            num_seqs,
            graphs=assembly.uses_graphs,
            num_host_blocks=assembly.num_host_blocks,
        )
    if gpu is not None:
        with settings.phase("graphs"), gpu.out_of_memory_means("the steps do not fit"):
            _make_ready(runner, assembly, settings)
        _hold_to_plan(gpu, memory, settings)
    settings.add_start()
    info = assembly.model_info(memory, settings)
    grammars = assembly.grammars()
    return ModelEngine(assembly.scheduler(memory, grammars), runner, info, config.pipeline_depth, gpu, grammars)


def open_gpu(device: torch.device, config: EngineConfig) -> GpuMemory | None:
    """The memory of a CUDA device, None for a CPU."""
    return GpuMemory(device, config.gpu_memory_utilization) if device.type == "cuda" else None


def _make_ready(runner: ModelRunner, assembly: Assembly, settings: Settings) -> None:
    # What a step of decoding rows runs is loaded here: the memory plan's rehearsal was a step of prefill.
    runner.rehearse(1, 1)
    # Torch has the largest step's memory before graphs take theirs: of the two, a graph can be done without.
    runner.rehearse(assembly.max_num_batched_tokens, assembly.max_num_seqs)
    if not assembly.uses_graphs:
        why = "enforce_eager as given" if assembly.config.enforce_eager else "the model's rotation depends on lengths"
        settings.add("cuda_graphs", "off", f"{why}; every step runs kernel by kernel")
        return
    with progress_bar("capturing CUDA graphs", unit="graph") as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        report = runner.capture(show)
    settings.add(
        "cuda_graphs",
        report.num_graphs,
        f"decode steps of up to {max(report.decode_rows, default=0)} rows, prefill of up to "
        f"{max(report.mixed_tokens, default=0):,} tokens; captured in {report.seconds:.1f} s",
    )


def _hold_to_plan(gpu: GpuMemory, memory: MemoryPlan, settings: Settings) -> None:
    row, warning = gpu.check(memory)
    settings.rows.append(row)
    if warning is not None:
        _LOG.warning("%s", warning)

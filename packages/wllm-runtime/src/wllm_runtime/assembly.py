"""`Assembly`: what an engine is put together from, once the model is loaded and before its memory is divided.

Builds the parts that depend on the memory plan: scheduler, runner, the facts for the API. Used by `create_engine`,
twice for the runner: on a GPU a small one first finds out what the largest step takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from wllm_cache import BlockPool
from wllm_runtime.buffers import SlotTables
from wllm_runtime.checkpoint import Checkpoint
from wllm_runtime.config import EngineConfig
from wllm_runtime.gpu_budget import Needs
from wllm_runtime.gpu_memory import GpuMemory
from wllm_runtime.grammars import Grammars
from wllm_runtime.graphs import decode_bucket_sizes, mixed_bucket_sizes
from wllm_runtime.host_tier import HostTier
from wllm_runtime.kv_cache import KVCache
from wllm_runtime.memory import MemoryPlan
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.models.loading import weight_bytes
from wllm_runtime.runner import ModelRunner
from wllm_runtime.sampler import Sampler
from wllm_runtime.settings import Settings
from wllm_sched import ModelInfo, Scheduler, SchedulerConfig

# Prompt log-probabilities are computed for so many positions at a time, however few requests run.
_SCORED_POSITIONS = 64
# For each token of the vocabulary, of each request with a penalty: a count and a flag, and once more while tables grow.
_PENALTY_BYTES = 2 * (4 + 1)
# A guess on the high side of what the driver keeps of the ten or so kernels of a layer.
_GRAPH_BYTES_PER_LAYER = 160 << 10
# The graphs share memory for the activations of the longest step among them, and the longest steps have none: the
# larger the model, the shorter the steps from which on graphs win nothing. What is held back in vain is no KV cache.
_GRAPH_SHARE_OF_ACTIVATIONS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The loaded model and the sizes that do not depend on memory.

    `spin` is how the runner waits for the GPU; `max_step_ms` is as in `SchedulerConfig`.
    """

    config: EngineConfig
    checkpoint: Checkpoint
    model: Decoder
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    max_num_seqs: int
    max_num_batched_tokens: int
    spin: bool
    max_step_ms: float | None

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token takes in the KV cache."""
        return KVCache.bytes_per_token(self.model.config, self.kv_dtype)

    @property
    def num_host_blocks(self) -> int:
        """Blocks of the host's tier."""
        return int(self.config.kv_offload_gib * 2**30) // (self.bytes_per_token * self.config.block_size)

    @property
    def uses_graphs(self) -> bool:
        """Whether steps may replay CUDA graphs, which can hold no rotation that depends on lengths (dynamic NTK)."""
        return not self.config.enforce_eager and not self.model.config.rope.depends_on_length

    def grammars(self) -> Grammars | None:
        """The compiler of grammars, if there is a tokenizer."""
        text = self.checkpoint.tokenizer_json
        if text is None:
            return None
        return Grammars(text, self.model.config.vocab_size, self.checkpoint.eos_token_ids)

    def scheduler(self, memory: MemoryPlan, grammars: Grammars | None) -> Scheduler:
        """A scheduler over the plan's blocks."""
        rope = self.model.config.rope
        return Scheduler(
            SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=memory.max_model_len,
                enable_prefix_caching=self.config.enable_prefix_caching,
                eos_token_ids=self.checkpoint.eos_token_ids,
                vocab_size=self.model.config.vocab_size,
                max_stall_ms=self.config.max_stall_ms,
                max_step_ms=self.max_step_ms,
                length_salt_above=rope.max_position_embeddings if rope.depends_on_length else None,
            ),
            BlockPool(memory.num_kv_blocks, memory.block_size, num_host_blocks=self.num_host_blocks),
            grammars=grammars,
        )

    def runner(
        self, num_blocks: int, max_model_len: int, num_slots: int, *, graphs: bool, num_host_blocks: int = 0
    ) -> ModelRunner:
        """A runner over a new KV cache of `num_blocks`, with tables for `num_slots` requests of `max_model_len`."""
        block_size = self.config.block_size
        kv = KVCache.allocate(self.model.config, num_blocks, block_size, self.kv_dtype, self.device)
        tables = SlotTables(num_slots, max_model_len, block_size, self.device)
        return ModelRunner(
            self.model,
            kv,
            tables,
            Sampler(tables, self.model.config.vocab_size, self.checkpoint.eos_token_ids),
            depth=self.config.pipeline_depth,
            max_num_batched_tokens=self.max_num_batched_tokens,
            host=HostTier(kv, num_host_blocks) if num_host_blocks else None,
            graphs=graphs,
            spin=self.spin,
        )

    def needs(self, gpu: GpuMemory, longest: int) -> Needs:
        """Find out what the engine takes beside its KV cache, by running the largest step over a cache of two blocks.

        `longest` is the most tokens of a request. Raises `OutOfMemory` where that step does not fit.
        """
        weights = gpu.held()
        rows = max(self.max_num_seqs, _SCORED_POSITIONS)
        with gpu.out_of_memory_means("the state of the slots does not fit"):
            runner = self.runner(2, longest, rows, graphs=False)
        tables = gpu.held() - weights
        activations = gpu.peak_of(partial(runner.rehearse, self.max_num_batched_tokens, rows))
        # Libraries keep a workspace for each stream: graphs are captured on a stream of their own.
        workspace = gpu.held() - weights - tables
        activations -= workspace
        runner.close()
        if self.num_host_blocks:
            tables += HostTier.staging_bytes(self.bytes_per_token * self.config.block_size)
        return Needs(
            weights=weights,
            activations=activations,
            tables=tables + self.max_num_seqs * self.model.config.vocab_size * _PENALTY_BYTES,
            graphs=self._graph_bytes(activations) + workspace if self.uses_graphs else 0,
            cuda=gpu.outside_of_torch() + workspace,
        )

    def _graph_bytes(self, activations: int) -> int:
        count = len(decode_bucket_sizes(self.max_num_seqs)) + len(mixed_bucket_sizes(self.max_num_batched_tokens))
        of_driver = count * self.model.config.num_layers * _GRAPH_BYTES_PER_LAYER
        return of_driver + int(activations * _GRAPH_SHARE_OF_ACTIVATIONS)

    def model_info(self, memory: MemoryPlan, settings: Settings) -> ModelInfo:
        """The engine's first message."""
        checkpoint, decoder = self.checkpoint, self.model.config
        return ModelInfo(
            model=self.config.model,
            architecture=decoder.architecture,
            tokenizer_json=checkpoint.tokenizer_json,
            chat_template=checkpoint.chat_template,
            special_tokens=checkpoint.special_tokens,
            eos_token_ids=checkpoint.eos_token_ids,
            bos_token_id=checkpoint.bos_token_id,
            vocab_size=decoder.vocab_size,
            max_model_len=memory.max_model_len,
            num_kv_blocks=memory.num_kv_blocks,
            block_size=memory.block_size,
            dtype=str(self.dtype).removeprefix("torch."),
            device=str(self.device),
            default_sampling={**checkpoint.default_sampling, **(self.config.override_generation_config or {})},
            settings=tuple(settings.rows),
            # Not of the loaded model: packed weights are no longer parameters.
            num_parameters=weight_bytes(decoder, self.dtype) // self.dtype.itemsize,
            weight_bytes=weight_bytes(decoder, self.dtype),
            # A GPU that is late to come back after sleep must not become a CPU.
            restart_options={"device": self.device.type},
        )

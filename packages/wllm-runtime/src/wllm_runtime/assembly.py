"""`Assembly`: what an engine is put together from, once the model is loaded and before its memory is divided.

Builds the parts that depend on the memory plan: scheduler, runner, the facts for the API. Used by `create_engine`,
twice for the runner: on a GPU a small one first finds out what the largest step takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wllm_cache import BlockPool
from wllm_runtime.buffers import SlotTables
from wllm_runtime.checkpoint import Checkpoint
from wllm_runtime.config import EngineConfig
from wllm_runtime.kv_cache import KVCache
from wllm_runtime.memory import MemoryPlan
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.runner import ModelRunner
from wllm_runtime.sampler import Sampler
from wllm_runtime.settings import Settings
from wllm_sched import ModelInfo, Scheduler, SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The loaded model and the sizes that do not depend on memory. `spin` is how the runner waits for the GPU."""

    config: EngineConfig
    checkpoint: Checkpoint
    model: Decoder
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    max_num_seqs: int
    max_num_batched_tokens: int
    spin: bool

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token takes in the KV cache."""
        return KVCache.bytes_per_token(self.model.config, self.kv_dtype)

    def scheduler(self, memory: MemoryPlan) -> Scheduler:
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
                length_salt_above=rope.max_position_embeddings if rope.depends_on_length else None,
            ),
            BlockPool(memory.num_kv_blocks, memory.block_size),
        )

    def runner(self, num_blocks: int, max_model_len: int, num_slots: int) -> ModelRunner:
        """A runner over a new KV cache of `num_blocks`, with tables for `num_slots` requests of `max_model_len`."""
        block_size = self.config.block_size
        kv = KVCache.allocate(self.model.config, num_blocks, block_size, self.kv_dtype, self.device)
        tables = SlotTables(num_slots, max_model_len, block_size, self.device)
        sampler = Sampler(tables, self.model.config.vocab_size, self.checkpoint.eos_token_ids)
        return ModelRunner(
            self.model,
            kv,
            tables,
            sampler,
            depth=self.config.pipeline_depth,
            max_num_batched_tokens=self.max_num_batched_tokens,
            graphs=not self.config.enforce_eager,
            spin=self.spin,
        )

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
        )

"""`MemoryPlan`: how many KV blocks the engine gets, and the arithmetic behind it.

Computed once, after the weights are loaded; `lines` is printed at start. On a GPU the budget is a share of the free
device memory, on a CPU a fixed share of the free RAM that leaves the desktop usable.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from wllm_runtime.config import EngineConfig
from wllm_runtime.errors import ConfigError, OutOfMemory

MIB = 1 << 20
# On a CPU the KV cache competes with everything else on the machine, and long contexts are slow anyway.
CPU_SHARE_OF_FREE = 0.25
CPU_KV_LIMIT_BYTES = 4096 * MIB


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`num_kv_blocks` blocks of `block_size` tokens, and the longest request (`max_model_len`) that they serve."""

    num_kv_blocks: int
    block_size: int
    max_model_len: int
    bytes_per_block: int
    reason_blocks: str
    reason_model_len: str

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self.num_kv_blocks * self.bytes_per_block


def plan_memory(
    config: EngineConfig, *, device: torch.device, bytes_per_token: int, context_len: int, max_num_seqs: int
) -> MemoryPlan:
    """Divide the free memory; raises `OutOfMemory` or `ConfigError` when the wanted context cannot fit.

    `context_len` is the longest context that the model was made for, in tokens.
    """
    if config.max_model_len is not None and config.max_model_len > context_len:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is more than the model's context of {context_len} tokens; "
            f"use at most {context_len}"
        )
    block_size = config.block_size
    bytes_per_block = bytes_per_token * block_size
    wanted_len = config.max_model_len or context_len
    if config.num_kv_blocks is not None:
        num_blocks, reason = config.num_kv_blocks, "as given"
    else:
        budget, why = _budget(config, device)
        most_useful = max_num_seqs * _ceil_div(wanted_len, block_size)
        num_blocks = min(budget // bytes_per_block, most_useful)
        limit = "all that the slots can use" if num_blocks == most_useful else why
        reason = f"{limit}; {bytes_per_block / 1024:,.0f} KiB a block of {block_size} tokens"
    fits = num_blocks * block_size
    if config.max_model_len is not None and fits < wanted_len:
        raise OutOfMemory(
            f"max_model_len={wanted_len} needs {_ceil_div(wanted_len, block_size)} KV blocks "
            f"({_ceil_div(wanted_len, block_size) * bytes_per_block / MIB:,.0f} MiB), {num_blocks} fit ({reason}); "
            f"lower max_model_len to {fits} or free memory"
        )
    if fits < 2:
        raise OutOfMemory(f"no KV block fits ({reason}); free memory, or use a smaller model")
    if config.max_model_len is not None:
        reason_len = "as given"
    elif fits < wanted_len:
        reason_len = f"what the KV cache holds; the model's own context is {context_len:,}"
    else:
        reason_len = "the model's own context"
    return MemoryPlan(num_blocks, block_size, min(wanted_len, fits), bytes_per_block, reason, reason_len)


def _budget(config: EngineConfig, device: torch.device) -> tuple[int, str]:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * config.gpu_memory_utilization), (
            f"{config.gpu_memory_utilization:.0%} of {free // MIB:,} MiB free on the device after the weights"
        )
    free = psutil.virtual_memory().available
    share = int(free * CPU_SHARE_OF_FREE)
    if share > CPU_KV_LIMIT_BYTES:
        return CPU_KV_LIMIT_BYTES, f"the limit on a CPU, {free // MIB:,} MiB of RAM are free"
    return share, f"{CPU_SHARE_OF_FREE:.0%} of {free // MIB:,} MiB free RAM"


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)

"""`MemoryPlan`: how many KV blocks the engine gets and the longest request they serve, with the arithmetic behind it.

Pure arithmetic over a `KVBudget`; the budget comes from `gpu_budget.py` on CUDA and from `host_budget` on a CPU. Made
once, when the weights are loaded; `rows` is printed at start.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from wllm_runtime.config import EngineConfig
from wllm_runtime.errors import ConfigError, OutOfMemory
from wllm_runtime.settings import SettingRow

MIB = 1 << 20
# On a CPU the KV cache competes with everything else on the machine, and long contexts are slow anyway.
CPU_SHARE_OF_FREE = 0.25
CPU_KV_LIMIT_BYTES = 4096 * MIB


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Bytes that KV blocks may take, where they come from, and what a user can do when they are too few.

    `limit` bounds a number of blocks that was given, None for no bound; `rows` are the terms of the sum.
    """

    num_bytes: int
    reason: str
    fix: str
    limit: int | None = None
    rows: tuple[SettingRow, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`num_kv_blocks` blocks of `block_size` tokens, and the longest request (`max_model_len`) that they serve."""

    num_kv_blocks: int
    block_size: int
    max_model_len: int
    bytes_per_block: int
    reason_blocks: str
    reason_model_len: str
    budget_rows: tuple[SettingRow, ...] = ()

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self.num_kv_blocks * self.bytes_per_block

    @property
    def rows(self) -> list[SettingRow]:
        """The arithmetic, one term a row."""
        tokens = self.num_kv_blocks * self.block_size
        holds = (
            f"{self.kv_bytes / MIB:,.0f} MiB = {self.num_kv_blocks:,} x {self.bytes_per_block / 1024:,.0f} KiB "
            f"({self.block_size} tokens); {tokens:,} tokens, {tokens / self.max_model_len:.1f} requests of full length"
        )
        return [
            *self.budget_rows,
            ("kv_blocks", f"{self.num_kv_blocks:,}", f"{holds}; {self.reason_blocks}"),
            ("max_model_len", f"{self.max_model_len:,}", self.reason_model_len),
        ]


def longest_wanted(config: EngineConfig, context_len: int) -> int:
    """Tokens of the longest request that shall fit; raises `ConfigError` for more than the model was made for."""
    if config.max_model_len is not None and config.max_model_len > context_len:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is more than the model's context of {context_len} tokens; "
            f"use at most {context_len}"
        )
    return config.max_model_len or context_len


def plan_memory(
    config: EngineConfig, budget: KVBudget, *, bytes_per_token: int, context_len: int, max_num_seqs: int
) -> MemoryPlan:
    """Divide the budget; raises `OutOfMemory` or `ConfigError` when the wanted context cannot fit.

    `context_len` is the longest context that the model was made for, in tokens.
    """
    wanted_len = longest_wanted(config, context_len)
    block_size = config.block_size
    bytes_per_block = bytes_per_token * block_size
    blocks_wanted = _ceil_div(wanted_len, block_size)
    if config.num_kv_blocks is not None:
        num_blocks, reason = config.num_kv_blocks, "as given"
        if budget.limit is not None and num_blocks * bytes_per_block > budget.limit:
            raise OutOfMemory(
                f"num_kv_blocks={num_blocks} takes {num_blocks * bytes_per_block / MIB:,.0f} MiB, and "
                f"{budget.limit / MIB:,.0f} MiB are left ({budget.reason}); give at most "
                f"{max(budget.limit, 0) // bytes_per_block}, or {budget.fix}"
            )
    else:
        # More than all slots can fill at a time would serve the prefix cache alone, and other programs need memory too.
        most_useful = max_num_seqs * blocks_wanted
        num_blocks = min(max(budget.num_bytes, 0) // bytes_per_block, most_useful)
        reason = "all that the slots can use" if num_blocks == most_useful else budget.reason
    fits = num_blocks * block_size
    if fits < 2:
        raise OutOfMemory(
            f"no KV block of {bytes_per_block / 1024:,.0f} KiB fits: {budget.num_bytes / MIB:,.0f} MiB are left "
            f"({budget.reason}); {budget.fix}"
        )
    if config.max_model_len is not None and fits < wanted_len:
        raise OutOfMemory(
            f"max_model_len={wanted_len} needs {blocks_wanted} KV blocks "
            f"({blocks_wanted * bytes_per_block / MIB:,.0f} MiB), {num_blocks} fit ({reason}); "
            f"lower max_model_len to {fits}, or {budget.fix}"
        )
    if config.max_model_len is not None:
        reason_len = "as given"
    elif fits < wanted_len:
        reason_len = f"what the KV cache holds; the model's own context is {context_len:,}"
    else:
        reason_len = "the model's own context"
    return MemoryPlan(num_blocks, block_size, min(wanted_len, fits), bytes_per_block, reason, reason_len, budget.rows)


def host_budget() -> KVBudget:
    """The budget on a CPU: a share of the free RAM that leaves the desktop usable."""
    free = psutil.virtual_memory().available
    num_bytes, reason = int(free * CPU_SHARE_OF_FREE), f"{CPU_SHARE_OF_FREE:.0%} of {free // MIB:,} MiB free RAM"
    if num_bytes > CPU_KV_LIMIT_BYTES:
        num_bytes, reason = CPU_KV_LIMIT_BYTES, f"the limit on a CPU, {free // MIB:,} MiB of RAM are free"
    return KVBudget(num_bytes, reason, "free memory, or use a smaller model")


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)

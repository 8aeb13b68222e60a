"""Blocks for a sample that is about to run: cached ones, its siblings' prompt, or fresh ones.

A sample is admitted with room for all its known tokens, so a prefill never runs out of blocks half way, and only if
every running sample could still grow by a block, so that admissions do not cause preemptions. Changes the sample's
table and counters and the pool; called by the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

from wllm_cache import BlockPool
from wllm_sched.plan import BlockCopy
from wllm_sched.request import Sample


@dataclass(slots=True)
class Admission:
    """Hands out blocks of `pool`; counts prefix cache queries and hits in tokens."""

    pool: BlockPool
    enable_prefix_caching: bool
    num_queried_tokens: int = 0
    num_hit_tokens: int = 0

    def admit(self, sample: Sample, num_running: int, copies: list[BlockCopy]) -> bool:
        """Give `sample` blocks for its known tokens, or return False and change nothing.

        I5: at least its last known token is left to compute.
        """
        request = sample.request
        room = self.pool.num_free - num_running
        if room < 1:  # even with everything cached, the block of the last token is a new one
            return False
        if request.prompt_table is not None and sample in request.held and sample.scores is None:
            self._take_over_prompt(sample, copies)
        elif not self._take_cached(sample, room):
            return False
        assert sample.computed < len(sample.token_ids), "I5: an admission with nothing to compute"
        request.admitted = True
        return True

    def _take_over_prompt(self, sample: Sample, copies: list[BlockCopy]) -> None:
        # The sibling recomputes the prompt's last token, for its logits. It writes that token's KV, so the block around
        # it becomes its own (I4); those before stay shared.
        request = sample.request
        assert request.prompt_table is not None
        num_shared = request.num_prompt_tokens - 1
        sample.table, source = request.prompt_table.fork(num_shared)
        sample.table.grow(request.num_prompt_tokens)
        if source is not None:
            copies.append(BlockCopy(source, sample.table.block_ids[-1]))
        sample.computed = num_shared

    def _take_cached(self, sample: Sample, room: int) -> bool:
        table, token_ids = sample.table, sample.token_ids
        num_blocks = -(-len(token_ids) // self.pool.block_size)
        if self.enable_prefix_caching:
            request = sample.request
            # Every prompt position's logits are wanted: no cached block can stand in for computing them.
            limit = None if sample.scores is None else 0
            matched = table.match(token_ids, request.salt) if limit is None else []
            if num_blocks - len(matched) + self.pool.count_free(matched) > room:
                return False
            sample.computed = table.adopt(token_ids, request.salt, limit=limit)
            if limit is None:
                self.num_queried_tokens += len(token_ids)
                self.num_hit_tokens += sample.computed
            if not request.admitted:
                request.num_cached_tokens = sample.computed
        elif num_blocks > room:
            return False
        table.grow(len(token_ids))
        return True

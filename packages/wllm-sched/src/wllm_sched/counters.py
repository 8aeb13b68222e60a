"""`Counters`: what a scheduler counts, and the snapshot of it that the world sees."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from wllm_cache import BlockPool
from wllm_sched.admission import Admission
from wllm_sched.messages import EngineStats


@dataclass(slots=True)
class Counters:
    """The part of `EngineStats` that only grows, under the same names."""

    steps_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    preemptions_total: int = 0
    aborts_in_flight_total: int = 0
    prefill_chunks_total: int = 0
    max_in_flight_seen: int = 0

    def snapshot(self, pool: BlockPool, admission: Admission, num_running: int, num_samples: int) -> EngineStats:
        """Everything, with `num_samples` unfinished samples of which `num_running` have a slot."""
        host = pool.host
        return EngineStats(
            num_running=num_running,
            num_waiting=num_samples - num_running,
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            prefix_cache_queries_total=admission.num_queried_tokens,
            prefix_cache_hits_total=admission.num_hit_tokens,
            num_host_blocks=0 if host is None else host.num_blocks,
            num_used_host_blocks=0 if host is None else host.num_used,
            host_saves_total=0 if host is None else host.num_saves,
            host_loads_total=0 if host is None else host.num_loads,
            **asdict(self),
        )

"""What `wllm bench ablate` switches off, and two measurements that show what only some of it is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from wllm.bench.driver import Driver
from wllm.bench.lengths import PromptMaker
from wllm.bench.results import Better
from wllm_sched import TokenEvent

_NO_STALL_LIMIT_MS = 1e9
_STREAM_PROMPT_LEN, _STREAM_TOKENS, _TOKENS_BEFORE = 64, 96, 8


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique, off by these settings. `how` says what off means; `only_mix`: no other row can show it."""

    name: str
    settings: dict[str, Any]
    how: str
    only_mix: bool = False


def techniques(
    *, device: str, num_blocks: int, block_size: int, max_model_len: int, long_prompt: int
) -> list[Technique]:
    """All that can be switched off on this device; the numbers are those of the engine with everything on."""
    whole_contexts = max(1, num_blocks * block_size // max_model_len)
    found = [
        Technique("two steps in flight", {"pipeline_depth": 1}, "a step is planned when the one before is committed"),
        Technique("prefix cache", {"enable_prefix_caching": False}, "every prompt is computed from its first token"),
        Technique(
            "chunking",
            {"max_stall_ms": _NO_STALL_LIMIT_MS, "max_num_batched_tokens": long_prompt + 256},
            "a prompt is computed in one step, however long streams wait meanwhile",
        ),
        Technique(
            "paging",
            {"max_num_seqs": whole_contexts},
            f"kernels always read through block tables, so off means what pages spare: each request reserves its whole "
            f"context of {max_model_len:,} tokens, and {whole_contexts} fit into the KV cache",
            only_mix=True,
        ),
    ]
    if device.startswith("cuda"):
        found.insert(
            0, Technique("CUDA graphs", {"enforce_eager": True}, "every kernel of a step is launched by the host")
        )
    return found


@dataclass(frozen=True, slots=True)
class SecondFirstToken:
    """Milliseconds to the first token of a prompt that came before: what a prefix cache is for."""

    prompt_len: int
    unit: str = "ms"
    better: Better = "lower"

    @property
    def what(self) -> str:
        """Names the row."""
        return f"first token of {self.prompt_len:,} seen before"

    def warm_up(self, driver: Driver, prompts: PromptMaker) -> None:
        """Both kinds of step."""
        self.sample(driver, prompts)

    def sample(self, driver: Driver, prompts: PromptMaker) -> float:
        """Measure once."""
        prompt = prompts.one(self.prompt_len)
        driver.generate([prompt], [1])
        return 1e3 * driver.generate([prompt], [1])


@dataclass(frozen=True, slots=True)
class Pause:
    """Milliseconds that streams wait at most for a token while a long prompt comes: what chunks are for."""

    num_streams: int
    prompt_len: int
    unit: str = "ms"
    better: Better = "lower"

    @property
    def what(self) -> str:
        """Names the row."""
        return f"longest pause of {self.num_streams} streams while {self.prompt_len:,} tokens come"

    def warm_up(self, driver: Driver, prompts: PromptMaker) -> None:
        """Lets the engine measure how long its chunks take."""
        self.sample(driver, prompts)

    def sample(self, driver: Driver, prompts: PromptMaker) -> float:
        """Measure once."""
        streams = {driver.submit(prompts.one(_STREAM_PROMPT_LEN), _STREAM_TOKENS): 0 for _ in range(self.num_streams)}
        last: dict[int, float] = {}
        longest = 0.0
        long_id: int | None = None
        arrived = False

        def see(events: Sequence[TokenEvent]) -> None:
            nonlocal longest, long_id, arrived
            now, waiting = perf_counter(), long_id is not None and not arrived
            for event in events:
                if event.request_id == long_id:
                    arrived = True
                elif event.token_ids:
                    if waiting:
                        longest = max(longest, now - last[event.request_id])
                    streams[event.request_id] += len(event.token_ids)
                    last[event.request_id] = now
            if long_id is None and min(streams.values()) >= _TOKENS_BEFORE:
                long_id = driver.submit(prompts.one(self.prompt_len), 1)

        driver.run(see)
        assert long_id is not None and arrived, "the streams ended before the long prompt came"
        return 1e3 * longest

"""`FakeEngine`: a whole engine over the simulated device, in one call."""

from __future__ import annotations

from collections.abc import Sequence

from wllm_cache import BlockPool
from wllm_sched.chunking import ChunkPolicy, FixedChunks
from wllm_sched.config import SchedulerConfig
from wllm_sched.engine import EngineLoop
from wllm_sched.messages import Submit, TokenEvent
from wllm_sched.sampling import SamplingParams
from wllm_sched.scheduler import Scheduler
from wllm_sched.testing.checked import CheckedScheduler
from wllm_sched.testing.grammar import FakeGrammars
from wllm_sched.testing.model import FakeModel
from wllm_sched.testing.runner import FakeRunner


class FakeEngine(EngineLoop):
    """An engine loop with a pool of its own and the simulated runner, `device`, that it drives.

    `chunks` leaves prefill unlimited beside decodes by default, so that runs can be repeated exactly.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        model: FakeModel,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        num_host_blocks: int = 0,
        swap_lag: int = 0,
        grammar_lag: int = 0,
        depth: int = 2,
        chunks: ChunkPolicy | None = None,
        scheduler_type: type[Scheduler] = CheckedScheduler,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size, num_host_blocks=num_host_blocks)
        self.device = FakeRunner(
            num_blocks,
            block_size,
            model,
            depth=depth,
            pool=self.pool,
            num_host_blocks=num_host_blocks,
            swap_lag=swap_lag,
        )
        policy = FixedChunks(config.max_num_batched_tokens) if chunks is None else chunks
        grammars = FakeGrammars(config.vocab_size, model.eos_token_id, grammar_lag)
        super().__init__(scheduler_type(config, self.pool, policy, grammars), self.device, depth=depth)

    def ask(self, request_id: int, prompt: Sequence[int], params: SamplingParams) -> None:
        """Submit a request."""
        self.submit(Submit(request_id, prompt, params))

    def serve(self) -> dict[tuple[int, int], list[TokenEvent]]:
        """Step until nothing is left to do; the events of each sample by (request id, index)."""
        events: dict[tuple[int, int], list[TokenEvent]] = {}
        while self.has_work():
            for event in self.step():
                events.setdefault((event.request_id, event.index), []).append(event)
        return events

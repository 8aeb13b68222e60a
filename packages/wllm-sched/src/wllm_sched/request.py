"""What the scheduler knows of a request: `Request`, and one `Sample` for each of the answers that it wants.

Plain state, changed only by the scheduler. A sample is waiting, running (it has a slot) or finished. Its counters
chase each other: `computed` <= `limit`, and while it decodes `computed` is one less than the known tokens plus those
still in flight.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from time import perf_counter

from wllm_cache import BlockPool, BlockTable
from wllm_sched.grammar import Matcher
from wllm_sched.messages import StartTimes
from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Sample:
    """One answer of a request: its tokens, its blocks, how far it is.

    `computed` counts the tokens whose KV is written or planned to be. `limit` is the most that will ever be computed:
    the last token of an answer never is. `entered`: a plan has told the runner of its slot and tokens. `scores`
    collects prompt log-probabilities until they are delivered; None if there are none to collect. `admitted_s` is the
    time (perf_counter) when it first got a slot. `matcher` stands behind the last known token, if the answer has a
    grammar.
    """

    request: Request
    index: int
    key: tuple[int, int, int]
    token_ids: list[int]
    limit: int
    seed: int
    table: BlockTable
    slot: int = NO_SLOT
    computed: int = 0
    entered: bool = False
    finished: bool = False
    scores: list[TokenLogprobs | None] | None = None
    admitted_s: float | None = None
    matcher: Matcher | None = None

    @property
    def awaits_token(self) -> bool:
        """Whether its next row needs a token that is not known yet, as its grammar does for the mask."""
        return self.matcher is not None and self.computed >= len(self.token_ids)

    @property
    def start_times(self) -> StartTimes:
        """How it came to its first token, which is there now."""
        assert self.admitted_s is not None, "I5: a token of a sample that was never admitted"
        return StartTimes(self.admitted_s - self.request.submitted_s, perf_counter() - self.admitted_s)

    def take_scores(self) -> tuple[TokenLogprobs | None, ...] | None:
        """The prompt's log-probabilities, once."""
        scores, self.scores = self.scores, None
        if scores is None:
            return None
        assert len(scores) == self.request.num_prompt_tokens, f"The runner returned {len(scores)} prompt logprobs"
        return tuple(scores)

    def __lt__(self, other: Sample) -> bool:
        return self.key < other.key


@dataclass(slots=True, eq=False)
class Request:
    """A request and its samples.

    `held` are samples that have yet to take over the prompt's blocks from the first one. Until the prompt has been
    launched they wait for it; then `prompt_table` keeps its blocks alive and they stand in the waiting line.
    `is_compiling`: its grammar is not ready, so none of its samples waits for a slot.
    """

    request_id: int
    num_prompt_tokens: int
    params: SamplingParams
    params_without_scores: SamplingParams
    stop_ids: frozenset[int]
    salt: bytes
    scores_only: bool
    num_unfinished: int
    submitted_s: float
    samples: list[Sample] = field(default_factory=list)
    held: list[Sample] = field(default_factory=list)
    prompt_table: BlockTable | None = None
    num_cached_tokens: int = 0
    admitted: bool = False
    prompt_counted: bool = False
    is_compiling: bool = False

    @property
    def unfinished(self) -> list[Sample]:
        """The samples that have not ended."""
        return [sample for sample in self.samples if not sample.finished]

    def share_prompt(self, table: BlockTable) -> list[Sample]:
        """The prompt is launched, in the blocks of `table`: keep them for the siblings, which may now be admitted."""
        if not self.held or self.prompt_table is not None:
            return []
        self.prompt_table = table.share(self.num_prompt_tokens)
        return self.held

    def drop_prompt_table(self) -> None:
        """Give the prompt's blocks back; whoever still waits for them computes the prompt itself."""
        if self.prompt_table is not None:
            self.prompt_table.release()
            self.prompt_table = None
            self.held.clear()

    def compiled(self, matcher: Matcher) -> Sample | None:
        """The grammar is ready: give every sample its own matcher; the one that computes the prompt, if any is left."""
        for sample in self.samples:
            sample.matcher = matcher.copy()
        return next((one for one in self.unfinished if one not in self.held), None)

    def settle(self, sample: Sample) -> Sample | None:
        """`sample` now runs or has ended; the sibling that must compute the prompt in its place, if any."""
        if sample in self.held:
            self.held.remove(sample)
            if not self.held:
                self.drop_prompt_table()
        elif sample.finished and self.held and self.prompt_table is None:
            successor = self.held.pop(0)
            return None if self.is_compiling else successor
        return None


def make_request(
    request_id: int,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    pool: BlockPool,
    arrival: int,
    max_num_tokens: int,
    eos_token_ids: Sequence[int],
    salt: bytes,
) -> Request:
    """A request with its `params.n` samples, none of which has a block yet; it ends at `max_num_tokens` in all."""
    num_prompt = len(prompt)
    request = Request(
        request_id=request_id,
        num_prompt_tokens=num_prompt,
        params=params,
        params_without_scores=params if params.prompt_logprobs is None else replace(params, prompt_logprobs=None),
        stop_ids=frozenset((*(params.stop_token_ids or ()), *(() if params.ignore_eos else eos_token_ids))),
        salt=salt,
        scores_only=params.max_tokens == 0,
        num_unfinished=params.n,
        submitted_s=perf_counter(),
    )
    wanted = max_num_tokens if params.max_tokens is None else min(num_prompt + params.max_tokens, max_num_tokens)
    for index in range(params.n):
        sample = Sample(
            request=request,
            index=index,
            key=(params.priority, arrival, index),
            token_ids=list(prompt),
            limit=max(num_prompt, wanted - 1),
            seed=sample_seed(params.seed, index),
            table=BlockTable(pool),
            scores=[None] if index == 0 and params.prompt_logprobs is not None else None,
        )
        request.samples.append(sample)
    request.held = request.samples[1:]
    return request


def sample_seed(seed: int | None, index: int) -> int:
    """The 64-bit seed of sample `index`: always the same for a given request seed, random without one."""
    if seed is None:
        return int.from_bytes(os.urandom(8), "little")
    name = (seed % 2**64).to_bytes(8, "little") + index.to_bytes(4, "little")
    return int.from_bytes(sha256(name).digest()[:8], "little")

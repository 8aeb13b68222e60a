"""The frozen description of one step: the only thing that crosses from the scheduler to a runner.

A plan is a promise: the scheduler has already advanced its counters when it hands one out, so a runner executes every
plan it gets, in order. Results are visible only when the step is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from wllm_cache import BlockSwap
from wllm_sched.sampling import SamplingParams


class Row(NamedTuple):
    """One request's share of a step: `count` tokens from position `start`.

    `samples` is the number of tokens drawn from the logits of the last position: 0 for a prefill chunk that does not
    reach the end of the known tokens or belongs to a request with `max_tokens` 0, else 1.
    """

    slot: int
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no one needs of a row
    samples: int


class NewSlot(NamedTuple):
    """A request that enters a slot with this step, fresh or again after a preemption.

    `token_ids` are all known tokens (the prompt, and what was generated before a preemption); `num_prompt_tokens` tells
    them apart. `seed` is the resolved 64-bit seed of this sample.
    """

    slot: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int


class NewBlocks(NamedTuple):
    """Block ids appended to a slot's table in cache group `group`, from table index `first`."""

    slot: int
    first: int
    block_ids: tuple[int, ...]
    group: int = 0


class TokenMask(NamedTuple):
    """The tokens that a slot's draw of this step may be: bit i % 32 of little-endian 32-bit word i // 32 allows i."""

    slot: int
    words: bytes


class BlockCopy(NamedTuple):
    """Copy the whole of block `source` to `target` in every layer, before the step's rows run."""

    source: int
    target: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: decode rows first, then prefill chunks. `step` counts from 0.

    New slots come first, then new blocks, then copies, then rows. The first `num_decode_rows` rows compute one token
    and draw one, so they fit a decode graph. No row reads a block that another row of the same plan writes.

    `swaps` copy blocks to or from the host, after earlier steps and swaps and this step's copies: a load may reuse the
    source of one. Those next to each other in the same direction have different sources and targets, and may run in
    any order. No step needs to wait for swaps, but for its rows: they wait until the first `swaps_needed` of all swaps
    so far, its own included, are done.

    `masks` has an entry for each row that draws under a grammar, unless it allows all. Such a row is planned only when
    the tokens before its draw are known, so no earlier draw of its slot is in flight.
    """

    step: int
    rows: tuple[Row, ...]
    new_slots: tuple[NewSlot, ...] = ()
    new_blocks: tuple[NewBlocks, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    swaps: tuple[BlockSwap, ...] = ()
    swaps_needed: int = 0
    masks: tuple[TokenMask, ...] = ()
    num_decode_rows: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step."""
        return sum(row.count for row in self.rows)


class TokenLogprobs(NamedTuple):
    """Log-probabilities of the plain model (before temperature and filters) at one position.

    `rank` counts from 1. `top` holds (token id, log-probability), best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced.

    `tokens` and `logprobs` have one entry per row with `samples` > 0, in plan order. `prompt_logprobs` maps a slot that
    asked for them to the entries of the prompt positions start+1 .. start+count of its row (none past the prompt's
    end).
    `errors` maps a slot to a failure that ends its request only (for example logits that are not finite). A slot is
    also in `error_codes` when its request's own parameters are the cause. `swaps_done` of all swaps so far are known to
    be done.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    error_codes: Mapping[int, str] = field(default_factory=dict)
    swaps_done: int = 0


class StepHandle(Protocol):
    """A launched step."""

    def wait(self) -> StepResult:
        """Block until the step has run; releases the GIL while it waits."""


class Runner(Protocol):
    """Executes plans in order. `ModelRunner` of wllm-runtime and `testing.FakeRunner` satisfy it."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start the step and return at once."""

    def swap(self, swaps: Sequence[BlockSwap]) -> int:
        """Run `swaps` without a step, wait for these and all before them, and return how many that are so far."""

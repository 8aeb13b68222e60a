"""`FakeRunner`: a simulated GPU that knows, for every KV cell, which exact prefix it belongs to.

Runs plans in order and shows results only when a handle is waited for, like a device behind a stream. Checks what a
real device would silently get wrong: I4 (writes to sealed or shared blocks), I6 (who writes the token table), I7 (a
plan buffer is reused too early), I8 (steps in flight), I10 (tokens that do not exist), I20 (blocks that are touched
while they are copied to or from the host), and that every read finds the KV of the exact prefix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

from wllm_cache import BlockPool, BlockSwap
from wllm_sched.plan import NewSlot, Row, StepPlan, StepResult, TokenLogprobs
from wllm_sched.testing.model import FakeModel


@dataclass(frozen=True, slots=True)
class FakeResult(StepResult):
    """A result that also tells the device's token count of each slot that drew a token."""

    lengths: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Slot:
    entry: NewSlot
    tokens: list[int]
    states: list[int]
    root: int
    blocks: list[int] = field(default_factory=list)


class _Handle:
    def __init__(self, runner: FakeRunner, result: FakeResult) -> None:
        self._runner = runner
        self._result = result
        self.waited = False

    def wait(self) -> FakeResult:
        assert not self.waited, "I7: a step is waited for twice"
        self.waited = True
        return replace(self._result, swaps_done=self._runner.num_swaps)


class FakeRunner:
    """Simulates `num_blocks` blocks of `block_size` tokens; `pool`, if given, tells which blocks are sealed.

    `depth` is the number of plan buffers, so of steps that may be in flight. A swap runs `swap_lag` steps after the one
    that it came with, or when it is waited for. Counts launches, tokens, copies and swaps.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        model: FakeModel,
        *,
        depth: int = 2,
        pool: BlockPool | None = None,
        num_host_blocks: int = 0,
        swap_lag: int = 0,
    ) -> None:
        self.model = model
        self.num_launched = 0
        self.num_copies = 0
        self.num_swaps = 0
        self.num_tokens = 0
        self.largest_step = 0
        self._block_size = block_size
        self._kv: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._host: list[list[int | None]] = [[None] * block_size for _ in range(num_host_blocks)]
        self._swap_lag = swap_lag
        self._swaps: deque[tuple[int, Sequence[BlockSwap]]] = deque()  # that have not run, and the steps they came with
        self._slots: dict[int, _Slot] = {}
        self._pool = pool
        self._ring: list[_Handle | None] = [None] * depth

    def launch(self, plan: StepPlan) -> _Handle:
        """Run the step; its results are seen through the handle."""
        assert plan.step == self.num_launched, f"Step {plan.step} is launched after {self.num_launched} others"
        buffer = self.num_launched % len(self._ring)
        previous = self._ring[buffer]
        assert previous is None or previous.waited, f"I7, I8: step {plan.step} reuses a buffer that is in flight"
        self.num_launched += 1
        self.num_tokens += plan.num_tokens
        self.largest_step = max(self.largest_step, plan.num_tokens)
        self._enter(plan)
        self._start_swaps(plan)
        self._check_shape(plan)
        for row in plan.rows:
            self._read(row)
        written: set[int] = set()
        for row in plan.rows:
            self._write(row, written)
        handle = _Handle(self, self._draw(plan))
        self._ring[buffer] = handle
        return handle

    def swap(self, swaps: Sequence[BlockSwap]) -> int:
        """Run all swaps."""
        self._swaps.append((self.num_launched, swaps))
        while self._swaps:
            self._run_swaps()
        return self.num_swaps

    def _start_swaps(self, plan: StepPlan) -> None:
        self._swaps.append((plan.step, plan.swaps))
        while self._swaps and (self._swaps[0][0] + self._swap_lag <= plan.step or self.num_swaps < plan.swaps_needed):
            self._run_swaps()
        assert self.num_swaps >= plan.swaps_needed, f"I20: {plan.swaps_needed} swaps are waited for, not all were given"

    def _run_swaps(self) -> None:
        _, swaps = self._swaps.popleft()
        self.num_swaps += len(swaps)
        for to_host, group in groupby(swaps, key=lambda swap: swap.to_host):
            pairs = [(swap.block, swap.host_block) for swap in group]
            # Each is the target of one swap only: a real device copies them all at once.
            assert len({pair[to_host] for pair in pairs}) == len(pairs), f"I20: two swaps write one block: {pairs}"
            for block, host_block in pairs:
                if to_host:
                    self._host[host_block] = self._kv[block].copy()
                else:
                    self._kv[block] = self._host[host_block].copy()

    def _enter(self, plan: StepPlan) -> None:
        for entry in plan.new_slots:
            state = root = self.model.root(entry.num_prompt_tokens, entry.params)
            states = [state := self.model.extend(state, token_id) for token_id in entry.token_ids]
            self._slots[entry.slot] = _Slot(entry, list(entry.token_ids), states, root)
        for slot, first, block_ids, _ in plan.new_blocks:
            blocks = self._slots[slot].blocks
            assert first == len(blocks), f"Blocks from index {first} for slot {slot}, which has {len(blocks)}"
            blocks += block_ids
        for source, target, _ in plan.copies:
            self._check_writable(target)
            self._kv[target] = self._kv[source].copy()
            self.num_copies += 1

    def _check_shape(self, plan: StepPlan) -> None:
        slots = [row.slot for row in plan.rows]
        assert len(set(slots)) == len(slots), "A slot has two rows in one step"
        for index, row in enumerate(plan.rows):
            if index < plan.num_decode_rows:
                assert row.count == row.samples == 1, f"Row {index} is no decode row: {row}"
            held = self._slots[row.slot]
            end = row.start + row.count
            assert row.count > 0 and end <= len(held.tokens), f"I10: {row} of {len(held.tokens)} tokens"
            assert end <= len(held.blocks) * self._block_size, f"{row} has no block"
            assert not row.samples or end == len(held.tokens), f"I6: {row} writes token {end} of {len(held.tokens)}"

    def _read(self, row: Row) -> None:
        # Before any write of this step: no row may depend on what another row of the step computes.
        held, size = self._slots[row.slot], self._block_size
        arriving = {swap.block for swap in self._waiting_swaps() if not swap.to_host}
        for index in range(-(-row.start // size)):
            first = index * size
            assert held.blocks[index] not in arriving, f"I20: {row} reads a block that is being loaded"
            expected = held.states[first : min(first + size, row.start)]
            found = self._kv[held.blocks[index]][: len(expected)]
            assert found == expected, f"Wrong KV: {row}, block {held.blocks[index]}, tokens from {first}"

    def _write(self, row: Row, written: set[int]) -> None:
        held, size = self._slots[row.slot], self._block_size
        for position in range(row.start, row.start + row.count):
            block = held.blocks[position // size]
            self._check_writable(block)
            self._kv[block][position % size] = held.states[position]
        blocks = set(held.blocks[row.start // size : -(-(row.start + row.count) // size)])
        assert not blocks & written, f"I4: {row} writes a block that another row writes"
        written |= blocks

    def _check_writable(self, block: int) -> None:
        assert self._pool is None or not self._pool.is_sealed(block), f"I4: sealed block {block} is written"
        assert all(swap.block != block for swap in self._waiting_swaps()), f"I20: block {block} is written in a swap"

    def _waiting_swaps(self) -> Iterator[BlockSwap]:
        return chain.from_iterable(swaps for _, swaps in self._swaps)

    def _draw(self, plan: StepPlan) -> FakeResult:
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        scores: dict[int, tuple[TokenLogprobs, ...]] = {}
        errors: dict[int, str] = {}
        lengths: dict[int, int] = {}
        masks = {slot: _allowed(words) for slot, words in plan.masks}
        for row in plan.rows:
            held = self._slots[row.slot]
            params = held.entry.params
            if params.prompt_logprobs is not None:
                scores[row.slot] = self._score(row, held, params.prompt_logprobs)
            if row.samples:
                state = held.states[-1]
                if self.model.fails(state):
                    errors[row.slot] = f"The logits of slot {row.slot} are not finite."
                mask = masks.pop(row.slot, None)
                assert mask is None or params.grammar is not None, f"I21: slot {row.slot} has a mask of another"
                token = self.model.draw(state, held.entry.seed, params.temperature, mask)
                tokens.append(token)
                wanted = params.logprobs
                logprobs.append(None if wanted is None else self.model.logprob(state, token, wanted))
                held.tokens.append(token)
                held.states.append(self.model.extend(state, token))
                lengths[row.slot] = len(held.tokens)
        assert not masks, f"I21: masks for slots that draw nothing: {list(masks)}"
        return FakeResult(tuple(tokens), tuple(logprobs), scores, errors, lengths=lengths)

    def _score(self, row: Row, held: _Slot, num_top: int) -> tuple[TokenLogprobs, ...]:
        end = min(row.start + row.count, held.entry.num_prompt_tokens - 1)
        return tuple(
            self.model.logprob(held.states[position], held.tokens[position + 1], num_top)
            for position in range(row.start, end)
        )


def _allowed(words: bytes) -> list[int]:
    bits = int.from_bytes(words, "little")
    return [token for token in range(bits.bit_length()) if bits >> token & 1]

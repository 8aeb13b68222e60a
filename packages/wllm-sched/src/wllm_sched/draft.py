"""`Draft`: a plan while it is being made, and `Flight`: a plan under way with the samples behind its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from wllm_cache import HostPool
from wllm_sched.chunking import Chunk
from wllm_sched.plan import BlockCopy, NewBlocks, NewSlot, Row, StepPlan, TokenMask
from wllm_sched.request import Sample


@dataclass(slots=True)
class Flight:
    """A plan that has not been committed, the sample of each of its rows, and how many tokens it draws."""

    plan: StepPlan
    samples: list[Sample]
    num_draws: int


@dataclass(slots=True)
class Draft:
    """Collects what a step does; decode rows and chunk rows stay apart until the end, where decode rows come first."""

    decode_rows: list[Row] = field(default_factory=list)
    decode_samples: list[Sample] = field(default_factory=list)
    chunk_rows: list[Row] = field(default_factory=list)
    chunk_samples: list[Sample] = field(default_factory=list)
    new_slots: list[NewSlot] = field(default_factory=list)
    new_blocks: list[NewBlocks] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    swaps_needed: int = 0
    masks: list[TokenMask] = field(default_factory=list)

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks so far."""
        return [Chunk(row.start, row.count) for row in self.chunk_rows]

    def enter(self, sample: Sample) -> None:
        """`sample` has a slot and blocks: hand its tokens over."""
        sample.entered = True
        request = sample.request
        params = request.params if sample.scores is not None else request.params_without_scores
        slot, num_prompt, seed = sample.slot, request.num_prompt_tokens, sample.seed
        self.new_slots.append(NewSlot(slot, tuple(sample.token_ids), num_prompt, params, seed))
        self.new_blocks.append(NewBlocks(slot, 0, tuple(sample.table.block_ids)))

    def add_chunk(self, sample: Sample, row: Row) -> None:
        """Add a row of a sample that prefills; one that draws from a single token is the same work as a decode."""
        self.swaps_needed = max(self.swaps_needed, sample.table.arrival)
        sample.table.arrival = 0  # whatever the sample computes from now on runs behind this row
        if row.count == row.samples == 1:
            self.decode_rows.append(row)
            self.decode_samples.append(sample)
        else:
            self.chunk_rows.append(row)
            self.chunk_samples.append(sample)

    def constrain(self, sample: Sample) -> None:
        """`sample` draws in this step: hand over what its grammar allows, if it has one."""
        mask = None if sample.matcher is None else sample.matcher.mask
        if mask is not None:
            self.masks.append(TokenMask(sample.slot, mask))

    def finish(self, step: int, host: HostPool | None) -> Flight | None:
        """The plan of step number `step`, with swaps that `host` has issued, or None if it has no row."""
        rows = (*self.decode_rows, *self.chunk_rows)
        if not rows:
            return None
        plan = StepPlan(
            step=step,
            rows=rows,
            new_slots=tuple(self.new_slots),
            new_blocks=tuple(self.new_blocks),
            copies=tuple(self.copies),
            swaps=() if host is None else host.take(self.swaps_needed),
            swaps_needed=self.swaps_needed,
            masks=tuple(self.masks),
            num_decode_rows=len(self.decode_rows),
        )
        num_draws = len(self.decode_rows) + sum(row.samples for row in self.chunk_rows)
        return Flight(plan, self.decode_samples + self.chunk_samples, num_draws)

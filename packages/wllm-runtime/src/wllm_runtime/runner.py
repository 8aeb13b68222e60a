"""`ModelRunner`: executes step plans. The only class that touches the model and the device tables at run time.

Plans run in launch order on one stream (`streams.py`). A launch enqueues: what entered slots since the last plan, one
copy of the packed plan, the forward pass (one replay, where a CUDA graph fits), the draws, and the tokens' way into the
token table and to the host. It waits for nothing; results are visible through the handle's `wait`, never before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from wllm_cache import BlockSwap
from wllm_kernels import advance_step, warmup
from wllm_runtime.buffers import SlotTables
from wllm_runtime.cuda_graphs import graph_backend
from wllm_runtime.forward import Forward
from wllm_runtime.graphs import GraphReport, GraphSet
from wllm_runtime.host_tier import HostTier
from wllm_runtime.kv_cache import KVCache
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.prompt_scores import PromptEntries, PromptScores
from wllm_runtime.sampler import Drawn, Sampler
from wllm_runtime.step_buffers import RingEntry, StepBuffers, block_entries
from wllm_runtime.streams import open_stream
from wllm_sched.plan import StepHandle, StepPlan, StepResult, TokenMask

# Their kernels run at moments that no rehearsal reaches.
_RARE_FAMILIES = ("step", "blocks", "sampling", "logprobs")


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """How steps ran; the counters only grow."""

    graph_replays: int = 0
    eager_steps: int = 0
    graph_failures: int = 0


class ModelRunner:
    """Runs plans of up to `max_num_batched_tokens` tokens, `depth` of them in flight.

    `host` holds blocks that `kv` has no room for. Without `graphs` every step runs kernel by kernel. `spin`: waiting
    for a GPU takes a core, and ends soonest.
    """

    def __init__(
        self,
        model: Decoder,
        kv: KVCache,
        tables: SlotTables,
        sampler: Sampler,
        *,
        depth: int,
        max_num_batched_tokens: int,
        host: HostTier | None = None,
        graphs: bool = True,
        spin: bool = True,
    ) -> None:
        device = tables.device
        self._tables, self._sampler = tables, sampler
        self._prompt_scores = PromptScores(model, tables)
        self._buffers = StepBuffers(tables.num_slots, depth, device)
        self._forward = Forward(model, kv, tables, self._buffers.fields)
        self._stream = open_stream(device, depth, spin)
        backend = graph_backend(device) if graphs and self._forward.fits_a_graph else None
        self._graphs = (
            None
            if backend is None
            else GraphSet(
                backend,
                self._forward.decode,
                self._forward.mixed,
                max_rows=tables.num_slots,
                max_tokens=max_num_batched_tokens,
            )
        )
        self._host = host
        self._block_size = kv.block_size
        self._no_tokens = torch.empty(0, dtype=torch.int64, device=device)
        self._graph_replays = self._eager_steps = 0

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start the step and return at once."""
        return self._stream.submit(partial(self._run, plan))

    def swap(self, swaps: Sequence[BlockSwap]) -> int:
        """Run `swaps` without a step, wait for these and all before them, and return how many that are so far."""
        return self._stream.submit(partial(self._run_swaps, swaps)).wait()

    def rehearse(self, num_tokens: int, num_rows: int) -> None:
        """Run one step of padding kernel by kernel, to see what memory it takes and to load what it needs."""
        warmup(self._tables.device, _RARE_FAMILIES)
        self._stream.submit(partial(self._run_padding, num_tokens, num_rows)).wait()

    def capture(self, on_progress: Callable[[int, int], None]) -> GraphReport:
        """Record the graphs, with nothing in flight; `on_progress` hears (done, total). Does nothing on a CPU."""
        if self._graphs is None:
            return GraphReport()
        return self._stream.submit(partial(self._capture, self._graphs, on_progress)).wait()

    def stats(self) -> RunnerStats:
        """Counters now."""
        failures = 0 if self._graphs is None else self._graphs.num_failures
        return RunnerStats(self._graph_replays, self._eager_steps, failures)

    def close(self) -> None:
        """Wait for what is in flight and stop the stream."""
        self._stream.close()

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> Callable[[], StepResult]:
        for new in plan.new_slots:
            self._tables.enter(new)
            self._sampler.enter(new)
            self._prompt_scores.enter(new)
        if plan.copies:
            self._forward.copy_blocks(plan.copies)
        if plan.swaps:
            self._host_tier.swap(plan.swaps)
        if plan.swaps_needed:
            self._host_tier.wait_for(plan.swaps_needed)
        entry, hidden = self._compute(plan)
        slots = tuple(row.slot for row in plan.rows if row.samples)
        drawn = self._draw(slots, hidden, plan.masks) if slots else None
        rows = self._buffers.fields.rows[: len(plan.rows)]
        tables = self._tables
        if drawn is None:
            advance_step(rows, self._no_tokens, tables.token_table, tables.lengths)
        else:
            results = entry.results[: len(slots)]
            advance_step(rows, drawn.tokens, tables.token_table, tables.lengths, results=results)
        scores = None
        if self._prompt_scores.wants(plan):
            assert hidden is not None, "a decode graph ran a step with prompt tokens to score"
            scores = self._prompt_scores.of_step(plan, hidden)
        return partial(self._collect, entry, drawn, scores)

    def _collect(self, entry: RingEntry, drawn: Drawn | None, scores: Callable[[], PromptEntries] | None) -> StepResult:
        # Runs behind the step's event: what was copied to the host is there.
        prompt_logprobs = {} if scores is None else scores()
        swaps_done = 0 if self._host is None else self._host.num_done()
        if drawn is None:
            result = StepResult(tokens=(), logprobs=(), prompt_logprobs=prompt_logprobs, swaps_done=swaps_done)
        else:
            token_ids = tuple(entry.results[: len(drawn.slots)].tolist())
            errors, error_codes = drawn.errors(token_ids)
            result = StepResult(token_ids, drawn.logprobs(), prompt_logprobs, errors, error_codes, swaps_done)
        entry.give_back()
        return result

    @property
    def _host_tier(self) -> HostTier:
        assert self._host is not None, "I20: a swap without host blocks"
        return self._host

    @torch.inference_mode()
    def _run_swaps(self, swaps: Sequence[BlockSwap]) -> Callable[[], int]:
        self._host_tier.swap(swaps)
        return self._host_tier.finish

    def _compute(self, plan: StepPlan) -> tuple[RingEntry, Tensor | None]:
        # The step's buffer, and its hidden states [tokens, ..]; None where a graph has computed the logits too.
        num_rows, num_tokens, graphs = len(plan.rows), plan.num_tokens, self._graphs
        if graphs is not None and plan.num_decode_rows == num_rows:
            decode = graphs.for_decode(num_rows)
            if decode is not None:
                entry = self._load(plan, decode.size)
                decode.replay()
                self._graph_replays += 1
                return entry, None
        if graphs is not None:
            mixed = graphs.for_mixed(num_tokens)
            if mixed is not None:
                entry = self._load(plan, self._buffers.num_rows)
                mixed.replay()
                self._graph_replays += 1
                return entry, graphs.hidden
        entry = self._load(plan, num_rows)
        longest = max(row.start + row.count for row in plan.rows)
        hidden = self._forward(
            num_rows,
            num_tokens,
            num_blocks=-(-longest // self._block_size),
            max_queries=max(row.count for row in plan.rows),
        )
        self._eager_steps += 1
        return entry, hidden

    def _load(self, plan: StepPlan, num_rows: int) -> RingEntry:
        has_room = sum(len(new.block_ids) for new in plan.new_blocks) <= self._buffers.num_rows
        if not has_room:  # a long prompt is admitted
            self._tables.append_blocks(block_entries(plan))
        return self._buffers.load(plan, num_rows, with_blocks=has_room)

    def _draw(self, slots: tuple[int, ...], hidden: Tensor | None, masks: Sequence[TokenMask]) -> Drawn:
        fields, count = self._buffers.fields, len(slots)
        if hidden is not None:
            self._forward.score(hidden.index_select(0, fields.scored[:count]))
        return self._sampler.sample(self._forward.logits[:count], slots, fields.positions[:count], masks)

    @torch.inference_mode()
    def _run_padding(self, num_tokens: int, num_rows: int) -> Callable[[], None]:
        entry = self._buffers.load_padding()
        hidden = self._forward(num_rows, num_tokens, num_blocks=self._tables.max_blocks, max_queries=num_tokens)
        self._sampler.rehearse(self._forward.score(hidden[:num_rows]))
        return entry.give_back

    @torch.inference_mode()
    def _capture(self, graphs: GraphSet, on_progress: Callable[[int, int], None]) -> Callable[[], GraphReport]:
        entry = self._buffers.load_padding()
        report = graphs.capture(on_progress)
        entry.give_back()
        return lambda: report

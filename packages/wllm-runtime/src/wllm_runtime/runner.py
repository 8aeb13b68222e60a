"""`ModelRunner`: executes step plans. The only class that touches the model and the device tables at run time.

Plans run in launch order on one stream: on a CPU that is a worker thread, so `launch` returns at once there too, and
the engine thread plans the next step while this one computes. Results are visible through `StepHandle.wait`, never
before.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from wllm_kernels import advance_step, attention_plan, copy_blocks, prepare_step, rope_plan
from wllm_runtime.buffers import SlotTables
from wllm_runtime.models.batch import StepBatch
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.prompt_scores import PromptScores
from wllm_runtime.sampler import Drawn, Sampler
from wllm_sched.plan import StepPlan, StepResult


class LaunchedStep:
    """A step on the runner's stream."""

    def __init__(self, future: Future[StepResult]) -> None:
        self._future = future

    def wait(self) -> StepResult:
        """Block until the step has run; raises what the step raised."""
        return self._future.result()


class ModelRunner:
    """Runs plans over `kv` ([layers, blocks, 2, kv_heads, block_size, head_dim]) and the slot tables."""

    def __init__(self, model: Decoder, kv: torch.Tensor, tables: SlotTables, sampler: Sampler) -> None:
        self._model = model
        self._kv = tuple(kv)
        self._block_size = kv.shape[4]
        self._tables = tables
        self._sampler = sampler
        self._prompt_scores = PromptScores(model, tables)
        self._windows = sorted(set(model.config.windows))
        rope = model.config.rope
        self._cos_sin = (
            None if rope.depends_on_length else rope.cos_sin_table(tables.token_table.shape[1], kv.dtype, kv.device)
        )
        self._stream = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wllm-step")

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start the step and return at once."""
        return LaunchedStep(self._stream.submit(self._run, plan))

    def close(self) -> None:
        """Wait for what is in flight and stop the stream."""
        self._stream.shutdown(wait=True)

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> StepResult:
        self._apply_changes(plan)
        device = self._tables.token_table.device
        rows = torch.tensor(plan.rows, dtype=torch.int32, device=device)
        cu_q = torch.zeros(len(plan.rows) + 1, dtype=torch.int32, device=device)
        torch.cumsum(rows[:, 2], 0, out=cu_q[1:])
        batch = self._batch(plan, rows, cu_q)
        hidden = self._model(batch)
        drawn = self._sample(plan, rows, cu_q, hidden)
        prompt_logprobs = self._prompt_scores.of_step(plan, hidden)
        if drawn is None:
            return StepResult(tokens=(), logprobs=(), prompt_logprobs=prompt_logprobs)
        return StepResult(
            tokens=drawn.token_ids,
            logprobs=drawn.logprobs,
            prompt_logprobs=prompt_logprobs,
            errors=drawn.errors,
            error_codes=drawn.error_codes,
        )

    def _apply_changes(self, plan: StepPlan) -> None:
        self._tables.enter(plan.new_slots)
        self._tables.append_blocks(plan.new_blocks)
        for new in plan.new_slots:
            self._sampler.enter(new)
            self._prompt_scores.enter(new)
        if plan.copies:
            pairs = torch.tensor(
                [(c.source, c.target) for c in plan.copies], dtype=torch.int64, device=self._kv[0].device
            )
            for kv in self._kv:
                copy_blocks(kv, pairs)

    def _batch(self, plan: StepPlan, rows: torch.Tensor, cu_q: torch.Tensor) -> StepBatch:
        tables, kv = self._tables, self._kv[0]
        longest = max(row.start + row.count for row in plan.rows)
        step = prepare_step(
            rows,
            cu_q,
            tables.token_table,
            tables.block_tables,
            block_size=self._block_size,
            num_tokens=plan.num_tokens,
            num_blocks=-(-longest // self._block_size),
        )
        rope_positions, cos_sin = step.positions, self._cos_sin
        if cos_sin is None:
            cos_sin = self._rotation_of(rows, step.positions)
            rope_positions = torch.arange(len(step.positions), device=kv.device)
        return StepBatch(
            input_ids=step.input_ids,
            rope_positions=rope_positions,
            cos_sin=cos_sin,
            cells=step.cells,
            block_table=step.block_table,
            seq_lens=step.seq_lens,
            cu_q=cu_q,
            kv=self._kv,
            rope_plan=rope_plan(kv, rope_positions, cos_sin, step.cells, dtype=kv.dtype),
            attention_plans={
                window: attention_plan(
                    kv,
                    step.block_table,
                    step.seq_lens,
                    cu_q,
                    num_heads=self._model.config.num_heads,
                    window=window,
                    max_queries=max(row.count for row in plan.rows),
                )
                for window in self._windows
            },
        )

    def _rotation_of(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # Dynamic NTK: a prompt token was seen with the whole prompt, a generated one with the text up to itself.
        prompt_lens = self._tables.num_prompt_tokens[rows[:, 0].long()].repeat_interleave(rows[:, 2].long())
        lengths = torch.maximum(prompt_lens, positions + 1)
        return self._model.config.rope.cos_sin_rows(positions, lengths, self._kv[0].dtype)

    def _sample(self, plan: StepPlan, rows: torch.Tensor, cu_q: torch.Tensor, hidden: torch.Tensor) -> Drawn | None:
        sampling = [index for index, row in enumerate(plan.rows) if row.samples]
        if not sampling:
            return None
        last = cu_q[1:][sampling].long() - 1
        logits = self._model.logits(hidden[last])
        drawn = self._sampler.sample(logits, [plan.rows[index] for index in sampling])
        advance_step(rows[sampling], drawn.tokens, self._tables.token_table, self._tables.lengths)
        return drawn

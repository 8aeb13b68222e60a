"""`Forward`: the decoder over the rows that a step's buffer holds, from the device's tables to logits.

It reads lengths, ids and blocks on the device only and waits for nothing, so that a CUDA graph can hold a whole call:
what such a graph must know is how many rows, tokens and blocks there can be. Called by the runner only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wllm_kernels import append_blocks, attention_plan, copy_blocks, prepare_step, rope_plan
from wllm_runtime.buffers import SlotTables
from wllm_runtime.kv_cache import KVCache
from wllm_runtime.models.batch import StepBatch
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.step_buffers import StepFields
from wllm_runtime.transfers import upload
from wllm_sched.plan import BlockCopy


class Forward:
    """A model over its KV cache, the slot tables and the buffer of a step.

    `logits` float32 [slots, vocab] holds what `score` computed last, which decoding needs no memory for.
    """

    def __init__(self, model: Decoder, kv: KVCache, tables: SlotTables, fields: StepFields) -> None:
        self._model = model
        self._kv = kv
        self._layers, self._scales = kv.layers, kv.layer_scales
        self._tables = tables
        self._fields = fields
        vocab_size = model.config.vocab_size
        self.logits = torch.empty(tables.num_slots, vocab_size, dtype=torch.float32, device=tables.device)
        self._windows = sorted(set(model.config.windows))
        self._dtype = model.embedding.dtype
        rope = model.config.rope
        self._cos_sin = (
            None
            if rope.depends_on_length
            else rope.cos_sin_table(tables.token_table.shape[1], self._dtype, tables.device)
        )

    @property
    def fits_a_graph(self) -> bool:
        """Whether a call depends on nothing but device memory and its arguments."""
        return self._cos_sin is not None

    def __call__(self, num_rows: int, num_tokens: int, *, num_blocks: int, max_queries: int) -> Tensor:
        """Hidden states [tokens, hidden] after the last norm; appends the new blocks and writes the KV cache.

        No row has more than `num_blocks` blocks or `max_queries` tokens. Rows of slot -1 and tokens of no row are
        padding: they write nothing, and their states mean nothing.
        """
        fields, tables, kv = self._fields, self._tables, self._layers[0]
        rows, cu_q = fields.rows[:num_rows], fields.cu_q[: num_rows + 1]
        append_blocks(tables.block_tables, fields.entries)
        step = prepare_step(
            rows,
            cu_q,
            tables.token_table,
            tables.block_tables,
            block_size=self._kv.block_size,
            num_tokens=num_tokens,
            num_blocks=num_blocks,
        )
        rope_positions, cos_sin = step.positions, self._cos_sin
        if cos_sin is None:
            cos_sin = self._rotation_of(rows, cu_q, step.positions)
            rope_positions = torch.arange(num_tokens, device=kv.device)
        batch = StepBatch(
            input_ids=step.input_ids,
            rope_positions=rope_positions,
            cos_sin=cos_sin,
            cells=step.cells,
            block_table=step.block_table,
            seq_lens=step.seq_lens,
            cu_q=cu_q,
            kv=self._layers,
            kv_scales=self._scales,
            rope_plan=rope_plan(kv, rope_positions, cos_sin, step.cells, dtype=self._dtype),
            attention_plans={
                window: attention_plan(
                    kv,
                    step.block_table,
                    step.seq_lens,
                    cu_q,
                    num_heads=self._model.config.num_heads,
                    window=window,
                    max_queries=max_queries,
                )
                for window in self._windows
            },
        )
        return self._model(batch)

    def score(self, hidden: Tensor) -> Tensor:
        """The logits of hidden states [rows, hidden], in the first rows of `logits`."""
        return self._model.logits(hidden, out=self.logits[: len(hidden)])

    def decode(self, num_rows: int) -> None:
        """The logits of `num_rows` rows with one token each, for any lengths."""
        self.score(self(num_rows, num_rows, num_blocks=self._tables.max_blocks, max_queries=1))

    def mixed(self, num_tokens: int) -> Tensor:
        """Hidden states of `num_tokens` tokens, for rows of any number and lengths."""
        return self(self._tables.num_slots, num_tokens, num_blocks=self._tables.max_blocks, max_queries=num_tokens)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks in every layer."""
        data, scales = self._kv.data, self._kv.scales
        # All layers are one tensor: a block of a layer is a block of it.
        firsts = range(0, len(data) * self._kv.num_blocks, self._kv.num_blocks)
        flat = [block for first in firsts for copy in copies for block in (first + copy.source, first + copy.target)]
        pairs = upload(flat, torch.int64, data.device).view(-1, 2)
        copy_blocks(data.flatten(0, 1), pairs)
        if scales is not None:
            copy_blocks(scales.flatten(0, 1), pairs)

    def _rotation_of(self, rows: Tensor, cu_q: Tensor, positions: Tensor) -> Tensor:
        # Dynamic NTK: a prompt token was seen with the whole prompt, a generated one with the text up to itself.
        tokens = torch.arange(len(positions), dtype=cu_q.dtype, device=cu_q.device)
        row_of_token = torch.searchsorted(cu_q[1:], tokens, right=True).clamp_(max=len(rows) - 1)
        slots = rows[row_of_token, 0].clamp(min=0)
        lengths = torch.maximum(self._tables.num_prompt_tokens[slots], positions + 1)
        return self._model.config.rope.cos_sin_rows(positions, lengths, self._dtype)

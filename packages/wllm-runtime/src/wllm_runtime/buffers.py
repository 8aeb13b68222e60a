"""`SlotTables`: the state of every slot on the device.

Written only by the runner, in the order of the plans. A slot's row holds the token ids and block ids of its request;
the scheduler's counters travel in the plan's rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from wllm_kernels import append_blocks
from wllm_runtime.transfers import host_tensor, upload
from wllm_sched.plan import NewSlot


class SlotTables:
    """Device tables, one row a slot.

    `token_table` int32 [slots, max_model_len + 1], `block_tables` int32 [slots, blocks], `lengths` int32 [slots]:
    tokens known to the device, `num_prompt_tokens` int64 [slots].
    """

    def __init__(self, num_slots: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.max_blocks = -(-max_model_len // block_size)
        self.device = device
        self.token_table = torch.zeros(num_slots, max_model_len + 1, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros(num_slots, self.max_blocks, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.num_prompt_tokens = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def enter(self, new: NewSlot) -> None:
        """Write the known tokens of a request that enters a slot."""
        tokens = host_tensor(new.token_ids, torch.int32, self.device)
        self.token_table[new.slot, : len(tokens)].copy_(tokens, non_blocking=True)
        self.lengths[new.slot].fill_(len(tokens))
        self.num_prompt_tokens[new.slot].fill_(new.num_prompt_tokens)

    def append_blocks(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Extend block tables by (slot, column, block), more of them than a step's buffer holds."""
        flat = [value for entry in entries for value in entry]
        append_blocks(self.block_tables, upload(flat, torch.int32, self.device).view(-1, 3))

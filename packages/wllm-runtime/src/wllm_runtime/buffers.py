"""`SlotTables`: the state of every slot on the device.

Written only by the runner, in the order of the plans. A slot's row holds the token ids and block ids of its request;
the scheduler's counters travel in the plan's rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wllm_sched.plan import NewBlocks, NewSlot


class SlotTables:
    """Device tables, one row a slot.

    `token_table` int32 [slots, max_model_len + 1], `block_tables` int32 [slots, blocks], `lengths` int32 [slots]:
    tokens known to the device, `num_prompt_tokens` int64 [slots].
    """

    def __init__(self, num_slots: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        blocks = -(-max_model_len // block_size)
        self.token_table = torch.zeros(num_slots, max_model_len + 1, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros(num_slots, blocks, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.num_prompt_tokens = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def enter(self, new_slots: Sequence[NewSlot]) -> None:
        """Write the known tokens of requests that enter a slot."""
        for new in new_slots:
            tokens = torch.tensor(new.token_ids, dtype=torch.int32)
            self.token_table[new.slot, : len(tokens)] = tokens.to(self.token_table.device)
            self.lengths[new.slot] = len(tokens)
            self.num_prompt_tokens[new.slot] = new.num_prompt_tokens

    def append_blocks(self, new_blocks: Sequence[NewBlocks]) -> None:
        """Extend block tables."""
        for new in new_blocks:
            ids = torch.tensor(new.block_ids, dtype=torch.int32)
            self.block_tables[new.slot, new.first : new.first + len(ids)] = ids.to(self.block_tables.device)

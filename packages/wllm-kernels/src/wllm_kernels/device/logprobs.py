"""Launch of the log-probabilities: two passes over the logits, three where the best tokens are asked for."""

from __future__ import annotations

from torch import Tensor

from wllm_kernels.device import logits as rows_of_logits
from wllm_kernels.device.arguments import row_stride
from wllm_kernels.device.kernel import Kernel
from wllm_kernels.device.logits import ROWS_PER_LAUNCH, THREADS, addresses, element_type, part_offsets

# Of one row: RankState and RANKED of logprobs.cu; of one slice: SliceSummary.
STATE_BYTES = 8216
CAPACITY = 2048
_SUMMARY_BYTES = 16
_SHARED_BYTES = 24960

_REDUCE, _RANK, _TOP = (
    Kernel("logprobs", f"logprobs_{step}", "9Qq6i", THREADS, _SHARED_BYTES, overlaps=True)
    for step in ("reduce", "rank", "top")
)


def workspace_bytes(rows: int, vocab_size: int) -> int:
    """The size of a workspace."""
    return _part_offsets(min(rows, ROWS_PER_LAUNCH), vocab_size)[-1]


def logprobs(
    logits: Tensor,
    token_ids: Tensor,
    workspace: Tensor | None,
    logprob: Tensor,
    rank: Tensor,
    top_ids: Tensor,
    top_logprobs: Tensor,
) -> None:
    """Value and rank of each row's token, and the row's best entries."""
    rows, vocab_size = logits.shape
    if not rows:
        return
    device = logits.device
    candidates, states, summaries, num_bytes = _part_offsets(min(rows, ROWS_PER_LAUNCH), vocab_size)
    workspace, start = rows_of_logits.workspace_address(workspace, num_bytes, device)
    top_n = top_ids.shape[1]
    slice_size = _slice_size()
    num_slices = -(-vocab_size // slice_size)
    pointers = (
        logits.data_ptr(),
        *addresses(token_ids=token_ids, logprob=logprob, rank=rank, top_ids=top_ids, top_logprobs=top_logprobs),
        start + summaries, start + states, start + candidates,
        row_stride("logits", logits), element_type(logits),
    )  # fmt: skip
    for first_row in range(0, rows, ROWS_PER_LAUNCH):
        parameters = (*pointers, first_row, vocab_size, slice_size, num_slices, top_n)
        rows_here = min(ROWS_PER_LAUNCH, rows - first_row)
        grid = (num_slices, rows_here, 1)
        _REDUCE.launch(device, grid, *parameters)
        _RANK.launch(device, grid if top_n else (1, rows_here, 1), *parameters)
        if top_n:
            _TOP.launch(device, grid, *parameters)


def _slice_size() -> int:
    """Always the same, so that a row's sum does not depend on how many rows there are."""
    return 2 * rows_of_logits.SLICE_STEP


def _part_offsets(rows: int, vocab_size: int) -> tuple[int, ...]:
    """Of the candidates, the states and the summaries of the slices; and the bytes of all."""
    num_slices = -(-vocab_size // _slice_size())
    return part_offsets(rows * CAPACITY * 8, rows * STATE_BYTES, rows * num_slices * _SUMMARY_BYTES)

"""Launch of the sampler: one pass over the logits for greedy rows, two for random ones, three for top-k and top-p.

Which rows are greedy, random or filtered is known on the device only, so a captured graph serves any values.
"""

from __future__ import annotations

from torch import Tensor

from wllm_kernels.device import logits as rows_of_logits
from wllm_kernels.device.arguments import row_stride
from wllm_kernels.device.kernel import Kernel, backends
from wllm_kernels.device.logits import ROWS_PER_LAUNCH, THREADS, addresses, element_type, part_offsets

# Of one row: SampleState of sampling.cuh, and how many candidates top-k and top-p may leave for the quick way.
STATE_BYTES = 24608
CAPACITY = 8192
_MOST_SLICES = 64
_GROUP = 8
_BLOCKS_PER_MULTIPROCESSOR = 4

_PREPARE, _WEIGH, _SELECT = (
    Kernel("sampling", f"sample_{step}", "24Q3q8i", THREADS, shared_bytes, overlaps=True)
    for step, shared_bytes in (("prepare", 24832), ("weigh", 24832), ("select", 41216))
)


def workspace_bytes(rows: int, vocab_size: int, adjusted: bool) -> int:
    """The size of a workspace; `adjusted` says whether there is a bias, a bitmask or a penalty."""
    return _part_offsets(min(rows, ROWS_PER_LAUNCH), vocab_size, adjusted)[-1]


def sample(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
    bias_rows: Tensor | None,
    bias_ids: Tensor | None,
    bias_values: Tensor | None,
    bitmask: Tensor | None,
    penalty_rows: Tensor | None,
    penalty_slots: Tensor | None,
    repetition: Tensor | None,
    presence: Tensor | None,
    frequency: Tensor | None,
    output_counts: Tensor | None,
    prompt_seen: Tensor | None,
    workspace: Tensor | None,
    out: Tensor,
) -> None:
    """One token id per row of `logits` into `out`; -1 where logits are not finite, -2 where no token is allowed."""
    rows, vocab_size = logits.shape
    if not rows:
        return
    device = logits.device
    bias_entries = 0 if bias_rows is None else len(bias_rows)
    num_penalised = 0 if penalty_rows is None else len(penalty_rows)
    adjusted = bool(bias_entries or num_penalised) or bitmask is not None
    rows_at_once = min(rows, ROWS_PER_LAUNCH)
    candidates, states, largest, drawn, num_bytes = _part_offsets(rows_at_once, vocab_size, adjusted)
    workspace, start = rows_of_logits.workspace_address(workspace, num_bytes, device)
    slice_size = _slice_size(rows_at_once, vocab_size, backends[device].properties(device).num_multiprocessors)
    num_slices = -(-vocab_size // slice_size)
    pointers = (
        logits.data_ptr(),
        start if adjusted else 0,
        *addresses(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seeds=seeds, positions=positions,
            bias_rows=bias_rows, bias_ids=bias_ids, bias_values=bias_values, bitmask=bitmask,
            penalty_rows=penalty_rows, penalty_slots=penalty_slots, repetition=repetition, presence=presence,
            frequency=frequency, output_counts=output_counts, prompt_seen=prompt_seen, out=out,
        ),
        start + largest, start + drawn, start + states, start + candidates,
        row_stride("logits", logits), _padded(vocab_size), 0 if bitmask is None else bitmask.shape[1],
        element_type(logits),
    )  # fmt: skip
    sizes_in_elements = (vocab_size, slice_size, num_slices, bias_entries, num_penalised, CAPACITY)
    for first_row in range(0, rows, ROWS_PER_LAUNCH):
        parameters = (*pointers, first_row, *sizes_in_elements)
        rows_here = min(ROWS_PER_LAUNCH, rows - first_row)
        grid = (num_slices, rows_here, 1)
        _PREPARE.launch(device, grid, *parameters)
        _WEIGH.launch(device, grid if temperature is not None else (1, rows_here, 1), *parameters)
        if temperature is not None and (top_k is not None or top_p is not None):
            _SELECT.launch(device, grid, *parameters)


def _padded(vocab_size: int) -> int:
    return -(-vocab_size // _GROUP) * _GROUP


def _part_offsets(rows: int, vocab_size: int, adjusted: bool) -> tuple[int, ...]:
    """Of the candidates, the states and what slices find twice, behind the adjusted logits; and the bytes of all."""
    adjusted_bytes = rows * _padded(vocab_size) * 4 if adjusted else 0
    slice_bytes = rows * _MOST_SLICES * 8
    return part_offsets(adjusted_bytes, rows * CAPACITY * 8, rows * STATE_BYTES, slice_bytes, slice_bytes)[1:]


def _slice_size(rows: int, vocab_size: int, multiprocessors: int) -> int:
    """So that the slices of all rows fill the GPU."""
    wanted = max(1, min(_MOST_SLICES, _BLOCKS_PER_MULTIPROCESSOR * multiprocessors // rows))
    step = rows_of_logits.SLICE_STEP
    return -(-vocab_size // (wanted * step)) * step

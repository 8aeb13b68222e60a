"""Cases of paged attention: decode against the copy bandwidth, prefill against torch's FlashAttention-2."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from _gpu import Gpu, Time
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from wllm_kernels import attention_plan, capabilities, paged_attention

Row = dict[str, object]
Baseline = Callable[[Tensor, Tensor, Tensor], Tensor]

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of a model: query heads, KV heads, head_dim."""

    queries: int
    keys: int
    dim: int

    def __str__(self) -> str:
        return f"{self.queries}/{self.keys} x {self.dim}"


QWEN_05B, LLAMA_8B, QWEN_GQA8 = Heads(14, 2, 64), Heads(32, 8, 128), Heads(32, 4, 128)

# Batch and tokens of each row; the cache that a step reads grows from 0.5 MB to 1 GiB.
DECODE_GRID = {
    QWEN_05B: [(1, 1024), (1, 8192), (8, 4096), (32, 4096), (128, 4096), (64, 16384), (256, 8192)],
    LLAMA_8B: [(1, 1024), (4, 1024), (1, 16384), (32, 2048), (16, 8192), (64, 4096), (8, 32768)],
    QWEN_GQA8: [(1, 1024), (8, 1024), (32, 1024), (64, 2048), (128, 4096)],
}
QUICK_DECODE_GRID = {
    QWEN_05B: [(1, 1024), (32, 4096), (128, 4096)],
    LLAMA_8B: [(1, 1024), (4, 1024), (32, 2048), (64, 4096)],
    QWEN_GQA8: [(8, 1024), (64, 2048)],
}
# Queries of the chunk and tokens of the row with it.
PREFILL_GRID = {
    LLAMA_8B: [(2048, 2048), (4096, 4096), (8192, 8192), (16384, 16384), (512, 8192)],
    QWEN_05B: [(4096, 4096)],
}
QUICK_PREFILL_GRID = {LLAMA_8B: [(4096, 4096), (512, 8192)], QWEN_05B: [(4096, 4096)]}


class PagedRows:
    """Layers of a KV cache of one dtype, and rows of the given lengths in shuffled blocks of it."""

    def __init__(self, heads: Heads, lengths: Sequence[int], layers: int, dtype: torch.dtype) -> None:
        blocks = [-(-length // BLOCK_SIZE) for length in lengths]
        shape = (layers, sum(blocks), 2, heads.keys, BLOCK_SIZE, heads.dim)
        self.scale: list[Tensor | None] = [None] * layers
        if dtype == torch.int8:
            self.kv = torch.randint(-127, 128, shape, dtype=dtype, device="cuda")
            self.scale = list(torch.empty(shape[:-1], dtype=torch.float16, device="cuda").uniform_(0.005, 0.02))
        else:
            plain = torch.bfloat16 if dtype.itemsize == 1 else dtype
            self.kv = torch.empty(shape, dtype=plain, device="cuda").normal_().to(dtype)
        order = torch.randperm(sum(blocks), dtype=torch.int32, device="cuda")
        parts = torch.tensor_split(order, torch.tensor(blocks).cumsum(0)[:-1])
        self.block_table = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True).contiguous()
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")

    @staticmethod
    def bytes_read(heads: Heads, lengths: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes of keys and values (and their scales) in one layer."""
        vector = heads.dim * dtype.itemsize + (2 if dtype == torch.int8 else 0)
        return sum(lengths) * heads.keys * 2 * vector


def decode(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """One query a row: GB/s of the keys and values read."""
    for heads, grid in (QUICK_DECODE_GRID if quick else DECODE_GRID).items():
        for batch, tokens in grid:
            yield from _decode_rows(gpu, heads, [tokens] * batch, f"{batch} x {tokens:,}")
    lengths = torch.linspace(64, 8192, 64).int().tolist()
    yield from _decode_rows(gpu, LLAMA_8B, lengths, "64 x 64..8,192")


def _decode_rows(gpu: Gpu, heads: Heads, lengths: Sequence[int], rows: str) -> Iterator[Row]:
    plain: Time | None = None
    for dtype in _cache_dtypes(gpu):
        time, planning = _time_decode(gpu, heads, lengths, dtype)
        size = PagedRows.bytes_read(heads, lengths, dtype)
        plain = plain or time
        rate = size / time.median
        yield {
            "heads": str(heads),
            "rows": rows,
            "cache": str(dtype).removeprefix("torch."),
            "KV MB": size / 1e6,
            "us": time.median * 1e6,
            "low us": time.low * 1e6,
            "GB/s": rate / 1e9,
            "of copy": rate / gpu.copy_bandwidth,
            "of bf16's time": time.median / plain.median,
            "plan us": planning.median * 1e6,
        }


def _cache_dtypes(gpu: Gpu) -> list[torch.dtype]:
    # What the code can do: --target may set it below what the GPU can.
    fp8 = any("e4m3" in family for family in capabilities().gpus[gpu.device.index].code)
    return [torch.bfloat16, torch.int8, *([torch.float8_e4m3fn] if fp8 else [])]


def _time_decode(gpu: Gpu, heads: Heads, lengths: Sequence[int], dtype: torch.dtype) -> tuple[Time, Time]:
    """Of a layer's attention, and of the plan that all layers of a step share."""
    layers = gpu.copies(PagedRows.bytes_read(heads, lengths, dtype))
    rows, batch = PagedRows(heads, lengths, layers, dtype), len(lengths)
    q = torch.randn(batch, heads.queries, heads.dim, dtype=torch.bfloat16, device="cuda")
    cu_q = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
    tables = rows.block_table, rows.seq_lens, cu_q
    plan = attention_plan(rows.kv[0], *tables, num_heads=heads.queries, max_queries=1)
    workspace = torch.empty(plan.workspace_elements, dtype=dtype, device="cuda")
    out = torch.empty_like(q)

    def attend(layer: int) -> object:
        return paged_attention(
            q, rows.kv[layer], *tables, scale=heads.dim**-0.5, kv_scale=rows.scale[layer], plan=plan,
            workspace=workspace, out=out,
        )  # fmt: skip

    def make_plan(_: int) -> object:
        return attention_plan(rows.kv[0], *tables, num_heads=heads.queries, max_queries=1, out=plan)

    attend(0)
    assert bool(out.isfinite().all()), "attention gave a value that is not finite"
    return gpu.time(attend, layers), gpu.time(make_plan)


def prefill(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """One causal prompt, or a chunk behind a prefix: TFLOP/s, and the time of torch's FlashAttention-2."""
    for heads, grid in (QUICK_PREFILL_GRID if quick else PREFILL_GRID).items():
        for queries, tokens in grid:
            yield _prefill_row(gpu, heads, queries, tokens)


def _prefill_row(gpu: Gpu, heads: Heads, queries: int, tokens: int) -> Row:
    rows = PagedRows(heads, [tokens], 1, torch.bfloat16)
    q = torch.randn(queries, heads.queries, heads.dim, dtype=torch.bfloat16, device="cuda")
    cu_q = torch.tensor([0, queries], dtype=torch.int32, device="cuda")
    tables = rows.block_table, rows.seq_lens, cu_q
    plan = attention_plan(rows.kv[0], *tables, num_heads=heads.queries, max_queries=queries)
    workspace = torch.empty(plan.workspace_elements, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(q)

    def attend(_: int) -> object:
        return paged_attention(
            q, rows.kv[0], *tables, scale=heads.dim**-0.5, plan=plan, workspace=workspace, out=out
        )  # fmt: skip

    # [2, tokens, num_kv_heads, head_dim], contiguous, as torch wants it.
    keys, values = rows.kv[0][rows.block_table[0].long()].permute(1, 0, 3, 2, 4).flatten(1, 2).contiguous().unbind(0)
    ours = gpu.time(attend)
    operations = 4 * heads.queries * heads.dim * (queries * tokens - queries * (queries - 1) // 2)
    row: Row = {
        "heads": str(heads),
        "queries": queries,
        "tokens": tokens,
        "us": ours.median * 1e6,
        "TFLOP/s": operations / ours.median / 1e12,
    }
    fastest = float("inf")
    for name, baseline in _baselines(queries, tokens).items():
        result = baseline(q, keys, values)
        difference = float((out.float() - result.float()).abs().max())
        assert difference < 0.03, f"{difference} from {name} on random data"
        time = gpu.time(partial(_attend_by, baseline, q, keys, values))
        row[f"{name} us"] = time.median * 1e6
        fastest = min(fastest, time.median)
    row["of torch's speed"] = fastest / ours.median
    return row


def _attend_by(baseline: Baseline, q: Tensor, keys: Tensor, values: Tensor, _: int) -> Tensor:
    return baseline(q, keys, values)


def _baselines(queries: int, tokens: int) -> dict[str, Baseline]:
    """torch's FlashAttention-2 on contiguous [tokens, heads, head_dim], by each of its doors that can compute this."""
    doors: dict[str, Baseline] = {"varlen": _varlen}
    if queries == tokens:
        doors["SDPA flash"] = _sdpa_flash
    return doors


def _sdpa_flash(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    queries, keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, keys, values))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1)


def _varlen(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    options: dict[str, object] = {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
    if "enable_gqa" in known:
        options["enable_gqa"] = True
    cu_q, cu_k = (_bounds(tensor.shape[0]) for tensor in (q, keys))
    result = varlen_attn(q, keys, values, cu_q, cu_k, q.shape[0], keys.shape[0], **options)  # type: ignore[arg-type]
    assert isinstance(result, Tensor)
    return result


_BOUNDS: dict[int, Tensor] = {}


def _bounds(tokens: int) -> Tensor:
    if tokens not in _BOUNDS:  # made outside of any capture, where a copy from the host cannot be
        _BOUNDS[tokens] = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    return _BOUNDS[tokens]

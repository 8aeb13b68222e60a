"""Cases of the sampler and of log-probabilities, against torch's own functions (a sort, where filters need one)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from _attention_cases import Row
from _gpu import Gpu, Time
from torch import Tensor

from wllm_kernels import Draw, logprobs, sample

VOCAB = 151_936  # of Qwen2.5
BATCHES = (1, 8, 64)
QUICK_BATCHES = (1, 64)
TOP_K, TOP_P, TEMPERATURE = 50, 0.9, 0.8


def sampling(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """One token a row from float32 logits of a vocabulary of 152k."""
    for batch in QUICK_BATCHES if quick else BATCHES:
        logits = _logits(gpu, batch)
        for name, (draw, baseline) in _modes(batch).items():
            ours, theirs = _time_draw(gpu, logits, draw, baseline)
            yield {
                "batch": batch,
                "rows draw": name,
                "us": ours.median * 1e6,
                "low us": ours.low * 1e6,
                "GB/s of one pass": logits[0].numel() * 4 / ours.median / 1e9,
                "torch us": theirs.median * 1e6,
                "x torch": theirs.median / ours.median,
            }


def log_probabilities(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """Log-probability and rank of a token, and the best `top_n`."""
    for batch in QUICK_BATCHES if quick else BATCHES:
        logits = _logits(gpu, batch)
        for top_n in (0, 5, 20):
            ours, theirs = _time_logprobs(gpu, logits, top_n)
            yield {
                "batch": batch,
                "top_n": top_n,
                "us": ours.median * 1e6,
                "low us": ours.low * 1e6,
                "torch us": theirs.median * 1e6,
                "x torch": theirs.median / ours.median,
            }


def _logits(gpu: Gpu, batch: int) -> Tensor:
    return torch.randn(gpu.copies(batch * VOCAB * 4), batch, VOCAB, device="cuda").mul_(2.5)


def _time_draw(gpu: Gpu, logits: Tensor, draw: Draw | None, baseline: Callable[[Tensor], Tensor]) -> tuple[Time, Time]:
    copies = len(logits)
    return gpu.time(lambda i: sample(logits[i], draw=draw), copies), gpu.time(lambda i: baseline(logits[i]), copies)


def _time_logprobs(gpu: Gpu, logits: Tensor, top_n: int) -> tuple[Time, Time]:
    tokens = torch.randint(VOCAB, (logits.shape[1],), device="cuda")
    return (
        gpu.time(lambda i: logprobs(logits[i], tokens, top_n), len(logits)),
        gpu.time(lambda i: _torch_logprobs(logits[i], tokens, top_n), len(logits)),
    )


def _modes(batch: int) -> dict[str, tuple[Draw | None, Callable[[Tensor], Tensor]]]:
    seeds = torch.arange(batch, device="cuda")
    temperature = torch.full((batch,), TEMPERATURE, device="cuda")
    top_k = torch.full((batch,), TOP_K, dtype=torch.int64, device="cuda")
    top_p = torch.full((batch,), TOP_P, device="cuda")

    def sorted_draw(logits: Tensor) -> Tensor:
        return _race(_filter_by_sort(logits / temperature[:, None], top_k, top_p))

    def sorted_top_p(logits: Tensor) -> Tensor:
        return _race(_filter_by_sort(logits / temperature[:, None], None, top_p))

    return {
        "greedy": (None, lambda logits: logits.argmax(-1)),
        "temperature": (Draw(temperature, seeds, seeds), lambda logits: _race(logits / temperature[:, None])),
        f"top-p {TOP_P}": (Draw(temperature, seeds, seeds, top_p=top_p), sorted_top_p),
        f"top-k {TOP_K}, top-p {TOP_P}": (Draw(temperature, seeds, seeds, top_k=top_k, top_p=top_p), sorted_draw),
    }


def _filter_by_sort(logits: Tensor, top_k: Tensor | None, top_p: Tensor) -> Tensor:
    """What torch offers: sort, cut the sorted row by rank and by mass, scatter the rest back."""
    values, order = logits.sort(dim=-1, descending=True)
    if top_k is not None:
        least = values.gather(1, top_k[:, None] - 1)
        values = values.masked_fill(values < least, -torch.inf)
    larger = values.softmax(-1).cumsum(-1).roll(1, -1)
    larger[:, 0] = 0.0
    values = values.masked_fill(larger >= top_p[:, None], -torch.inf)
    return torch.empty_like(values).scatter_(1, order, values)


def _race(logits: Tensor) -> Tensor:
    """A draw as the winner of exponential clocks, which needs no synchronisation (torch.multinomial has one)."""
    probabilities = logits.softmax(-1)
    return probabilities.div_(torch.empty_like(probabilities).exponential_()).argmax(-1)


def _torch_logprobs(logits: Tensor, tokens: Tensor, top_n: int) -> tuple[Tensor, ...]:
    chosen = logits.gather(1, tokens[:, None])
    rank = (logits > chosen).sum(-1) + 1
    values = logits.log_softmax(-1)
    return values.gather(1, tokens[:, None]), rank, *values.topk(top_n)

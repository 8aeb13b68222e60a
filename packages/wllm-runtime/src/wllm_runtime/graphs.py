"""`GraphSet`: a step's forward pass recorded once for each bucket of sizes, and replayed for any step that fits.

Launching a decoder's kernels one by one costs the host more than a small step costs the GPU; a replay is one call.
Steps of decoding rows have buckets by rows, those with prefill by tokens. What is not faster is not kept: a decode
bucket beside the next larger one, and prefill buckets from the size on where the GPU needs longer than the host. Owns
which bucket serves a step, never what a step does. Called by the runner only.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from wllm_kernels import KernelError

_LOG = logging.getLogger(__name__)
# The GPU limits an eager step, not the host, if after the launches it still computes for this share of their time.
_GPU_BOUND = 0.15

Replay = Callable[[], None]


class Timing(NamedTuple):
    """Seconds of a call: until the host was free again, and until its work was done."""

    host_s: float
    total_s: float


class GraphBackend(Protocol):
    """Records work on a device."""

    def capture(self, work: Callable[[], None]) -> Replay:
        """Record what `work` enqueues, without running it; raises `RuntimeError` or `KernelError` if it cannot be.

        `torch.OutOfMemoryError`, a `RuntimeError`, says that a smaller size may still find room.
        """

    def measure(self, work: Callable[[], object]) -> Timing:
        """The best of a few calls."""


@dataclass(frozen=True, slots=True)
class GraphReport:
    """What `capture` made: the sizes of the buckets that are kept, failures, and the seconds that it took."""

    decode_rows: tuple[int, ...] = ()
    mixed_tokens: tuple[int, ...] = ()
    num_failures: int = 0
    seconds: float = 0.0

    @property
    def num_graphs(self) -> int:
        """Graphs that are kept."""
        return len(self.decode_rows) + len(self.mixed_tokens)


class Bucket(NamedTuple):
    """A recorded size, in rows or in tokens, and its replay."""

    size: int
    replay: Replay


class _Buckets:
    """Buckets by size; the smallest that fits serves."""

    def __init__(self, buckets: Iterable[Bucket] = ()) -> None:
        self.all = sorted(buckets)
        self.sizes = [bucket.size for bucket in self.all]

    def find(self, size: int) -> Bucket | None:
        index = bisect_left(self.sizes, size)
        return None if index == len(self.all) else self.all[index]


class GraphSet:
    """The graphs of a runner, none until `capture`.

    `decode(rows)` computes the logits of so many rows with a token each; `mixed(tokens)` computes so many tokens and
    returns their hidden states [tokens, hidden].
    """

    def __init__(
        self,
        backend: GraphBackend,
        decode: Callable[[int], None],
        mixed: Callable[[int], Tensor],
        *,
        max_rows: int,
        max_tokens: int,
    ) -> None:
        self._backend, self._decode, self._mixed = backend, decode, mixed
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._decode_buckets, self._mixed_buckets = _Buckets(), _Buckets()
        self.hidden = torch.empty(0)
        self.num_failures = 0
        self._without_room: dict[str, list[int]] = {}
        self._can_capture = True

    def for_decode(self, num_rows: int) -> Bucket | None:
        """The bucket for a step of `num_rows` decoding rows."""
        return self._decode_buckets.find(num_rows)

    def for_mixed(self, num_tokens: int) -> Bucket | None:
        """The bucket for any step of `num_tokens`; its replay leaves the states in `hidden`."""
        return self._mixed_buckets.find(num_tokens)

    def capture(self, on_progress: Callable[[int, int], None]) -> GraphReport:
        """Record and time every bucket, and drop what is no faster; `on_progress` hears (done, total)."""
        started = perf_counter()
        decode_sizes = decode_bucket_sizes(self._max_rows)
        eager = self._time_eager(mixed_bucket_sizes(self._max_tokens))
        total, done = len(decode_sizes) + len(eager), 0

        def tell() -> None:
            nonlocal done
            done += 1
            on_progress(done, total)

        self._decode_buckets = self._record("decode", decode_sizes, self._decode, tell)
        self._mixed_buckets = self._record("mixed", list(eager), self._keep_hidden, tell)
        self._warn_of_missing_room()
        self._drop_slow_decode()
        self._drop_slow_mixed(eager)
        return GraphReport(
            tuple(self._decode_buckets.sizes),
            tuple(self._mixed_buckets.sizes),
            self.num_failures,
            perf_counter() - started,
        )

    def _time_eager(self, sizes: list[int]) -> dict[int, float]:
        # From small to large, until a step keeps the GPU busy for longer than its launches take.
        seconds = {}
        for size in sizes:
            timing = self._backend.measure(partial(self._mixed, size))
            if timing.total_s > (1 + _GPU_BOUND) * timing.host_s:
                break
            seconds[size] = timing.total_s
        if seconds:
            sample = self._mixed(1)
            self.hidden = torch.empty(max(seconds), sample.shape[1], dtype=sample.dtype, device=sample.device)
        return seconds

    def _keep_hidden(self, num_tokens: int) -> None:
        self.hidden[:num_tokens].copy_(self._mixed(num_tokens))

    def _record(self, kind: str, sizes: list[int], work: Callable[[int], None], tell: Callable[[], None]) -> _Buckets:
        buckets = []
        # Largest first: the smaller ones find room in the memory that the larger ones leave between their kernels.
        for size in sorted(sizes, reverse=True):
            if not self._can_capture:
                break
            try:
                buckets.append(Bucket(size, self._backend.capture(partial(work, size))))
            except torch.OutOfMemoryError:
                self.num_failures += 1
                self._without_room.setdefault(kind, []).append(size)
            except (RuntimeError, KernelError) as error:
                self.num_failures += 1
                self._can_capture = False  # the next one would most likely fail the same way
                _LOG.warning(
                    "The CUDA graph for %s steps of %d could not be captured: %s. Steps without a graph run kernel by "
                    "kernel, which is slower; --enforce-eager starts without trying.",
                    kind,
                    size,
                    error,
                )
            tell()
        return _Buckets(buckets)

    def _warn_of_missing_room(self) -> None:
        if self._without_room:
            _LOG.warning(
                "The GPU's memory ran out for the CUDA graphs of %s. Steps that fit no other graph run kernel by "
                "kernel, which is slower; lower --max-num-seqs, --max-num-batched-tokens or --num-kv-blocks to make "
                "room.",
                " and ".join(
                    f"{kind} steps of {', '.join(map(str, sorted(sizes)))}"
                    for kind, sizes in self._without_room.items()
                ),
            )

    def _drop_slow_decode(self) -> None:
        kept = []
        best = float("inf")
        for bucket in reversed(self._decode_buckets.all):
            seconds = self._backend.measure(bucket.replay).total_s
            if seconds < best:
                kept.append(bucket)
                best = seconds
        self._decode_buckets = _Buckets(kept)

    def _drop_slow_mixed(self, eager: dict[int, float]) -> None:
        self._mixed_buckets = _Buckets(
            bucket
            for bucket in self._mixed_buckets.all
            if self._backend.measure(bucket.replay).total_s < eager[bucket.size]
        )


def decode_bucket_sizes(max_rows: int) -> list[int]:
    """Rows of the decode buckets: dense where a step's time grows with them, and `max_rows` itself."""
    sizes = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, *range(80, 257, 16), *range(288, max_rows, 32)]
    return [size for size in sizes if size < max_rows] + [max_rows]


def mixed_bucket_sizes(max_tokens: int) -> list[int]:
    """Tokens of the buckets for steps with prefill: eight in each doubling from 512 on, and `max_tokens` itself."""
    sizes = list(range(64, 513, 64))
    while sizes[-1] < max_tokens:
        last = sizes[-1]
        sizes += range(last + last // 8, 2 * last + 1, last // 8)
    return [size for size in sizes if size < max_tokens] + [max_tokens]

"""How many prefill tokens may share a step with decodes, or have one to themselves.

A prefill chunk delays every stream that decodes beside it, and the display where a GPU has one. What a stream notices
is time, and how long a token takes differs a hundredfold between machines, so the limit is a time, and chunk sizes
follow from measured steps. The engine loop reports each step; the scheduler asks. Knows nothing of requests: a chunk is
its first position and its length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import median
from typing import NamedTuple, Protocol


class Chunk(NamedTuple):
    """`num_tokens` prefill tokens of one request from position `start`."""

    start: int
    num_tokens: int


class ChunkPolicy(Protocol):
    """Chooses chunk sizes; learns from finished steps."""

    def allowance(self, start: int, planned: Sequence[Chunk], num_decode_rows: int) -> int:
        """Tokens from position `start` for one more chunk in a step with these decode rows and the chunks `planned`.

        0 if nothing more fits; at least 1 when nothing is planned yet, so that a prompt always gets on.
        """

    def observe(self, chunks: Sequence[Chunk], num_decode_rows: int, elapsed_ms: float) -> None:
        """A step with these chunks and so many decode rows took `elapsed_ms`."""


class FixedChunks:
    """Always `num_tokens` prefill tokens beside decodes."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = max(num_tokens, 1)

    def allowance(self, start: int, planned: Sequence[Chunk], num_decode_rows: int) -> int:
        """What is left of the fixed number."""
        return max(self._num_tokens - _num_tokens(planned), 0)

    def observe(self, chunks: Sequence[Chunk], num_decode_rows: int, elapsed_ms: float) -> None:
        """Learn nothing."""


class TimedChunks:
    """Keeps a step that mixes prefill with decodes under `max_stall_ms`, as measured steps predict it.

    A step takes the time of its decodes (a median of late steps without prefill), and for its chunks a time per token
    and a time per pair of token and earlier token that attention looks at: without the second, each chunk of a long
    prompt would take longer than the one before led to expect. Until a prefill has been measured, a step has
    `first` tokens. When decodes alone take most of the limit or more, chunks still get `SHARE` of the decodes' time.
    """

    MULTIPLE, SMALL_MULTIPLE = 64, 16  # of steps; of chunks, where a step of 64 tokens takes too long
    SHARE = 0.25
    DECAY = 0.7  # of what a measured prefill weighs, with each later one
    # A pause of the host or a first use of a kernel says nothing about the device: a measurement counts as at most so
    # many times its prediction, and at least as this part of it. A real change gets through in a few steps.
    SURPRISE = 2.0
    # Where steps do not tell a token's time from its pairs', the latter stays as it was. At first, attention to so many
    # earlier tokens is assumed to take as long as the rest of a token's work.
    INERTIA = 0.1
    ASSUMED_CONTEXT = 8192
    # Longer than any step takes, and short enough for the arithmetic of floats.
    NO_LIMIT_MS = 1e9

    def __init__(self, max_stall_ms: float, *, first: int = 128) -> None:
        self.max_stall_ms = min(max_stall_ms, self.NO_LIMIT_MS)
        self.first = first
        self.token_ms = 0.0
        self.pair_ms = 0.0
        self._decode_ms: deque[float] = deque(maxlen=9)
        # Decaying sums of a least-squares fit in which every token counts once, with t tokens and p pairs a step:
        # of t, p, p^2 / t, ms, p * ms / t.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._num_fitted = 0

    @property
    def decode_ms(self) -> float:
        """The time of a step without prefill; 0 before the first."""
        return median(self._decode_ms) if self._decode_ms else 0.0

    def allowance(self, start: int, planned: Sequence[Chunk], num_decode_rows: int) -> int:
        """Tokens whose predicted time fits, in a step of a round size."""
        others = _num_tokens(planned) + num_decode_rows
        least = 0 if planned else self.SMALL_MULTIPLE
        if not self._num_fitted:
            return max(self.first - others, least)
        decode_ms = self.decode_ms
        left_ms = max(self.max_stall_ms - decode_ms, self.SHARE * decode_ms) - self._predict(planned)
        if left_ms <= 0.0:
            return least
        # The positive root of: pair_ms / 2 * n^2 + first_ms * n = left_ms.
        first_ms = self.token_ms + self.pair_ms * start
        num_tokens = int(2.0 * left_ms / (first_ms + sqrt(first_ms * first_ms + 2.0 * self.pair_ms * left_ms)))
        # The step as a whole gets a round size: graphs and tiles of kernels have no others.
        rounded = (others + num_tokens) // self.MULTIPLE * self.MULTIPLE - others
        if rounded < self.SMALL_MULTIPLE:
            rounded = num_tokens // self.SMALL_MULTIPLE * self.SMALL_MULTIPLE
        return max(rounded, least)

    def observe(self, chunks: Sequence[Chunk], num_decode_rows: int, elapsed_ms: float) -> None:
        """Take in what this step says about decodes or chunks."""
        if not chunks:
            self._decode_ms.append(elapsed_ms)
            return
        if _num_tokens(chunks) < self.SMALL_MULTIPLE:
            return  # this says more about a step's fixed cost than about a token's
        chunk_ms = max(elapsed_ms - (self.decode_ms if num_decode_rows else 0.0), 0.0)
        if self._num_fitted > 1:
            predicted = self._predict(chunks)
            chunk_ms = min(max(chunk_ms, predicted / self.SURPRISE), predicted * self.SURPRISE)
        self._fit(_num_tokens(chunks), _num_pairs(chunks), max(chunk_ms, 1e-3))

    def _predict(self, chunks: Sequence[Chunk]) -> float:
        return self.token_ms * _num_tokens(chunks) + self.pair_ms * _num_pairs(chunks)

    def _fit(self, tokens: float, pairs: float, ms: float) -> None:
        # The first measurement holds only until the second: it often includes what is done once.
        decay = self.DECAY if self._num_fitted > 1 else 0.0
        self._num_fitted += 1
        new = (tokens, pairs, pairs * pairs / tokens, ms, pairs * ms / tokens)
        t, p, pp, m, pm = (decay * before + now for before, now in zip(self._sums, new))
        self._sums = (t, p, pp, m, pm)
        before = self.pair_ms if decay else m / t / self.ASSUMED_CONTEXT
        inertia = self.INERTIA * t * pp
        self.pair_ms = max((t * pm - p * m + inertia * before) / (t * pp - p * p + inertia), 0.0)
        self.token_ms = (m - self.pair_ms * p) / t
        if self.token_ms < 0.0:
            self.token_ms, self.pair_ms = 0.0, pm / pp


class StepChunks:
    """The policies of a scheduler: `beside` decodes, and `alone` for a step without them (None: no limit)."""

    def __init__(self, beside: ChunkPolicy, alone: ChunkPolicy | None) -> None:
        self._beside, self._alone = beside, alone

    @classmethod
    def timed(cls, max_stall_ms: float, max_step_ms: float | None, beside: ChunkPolicy | None) -> StepChunks:
        """By time, but for `beside` where it is given."""
        if max_step_ms is None:
            return cls(beside or TimedChunks(max_stall_ms), None)
        return cls(beside or TimedChunks(min(max_stall_ms, max_step_ms)), TimedChunks(max_step_ms))

    def room(self, num_tokens: int, start: int, planned: Sequence[Chunk], num_decode_rows: int) -> int:
        """How many of `num_tokens` from position `start` one more chunk may have, as in `ChunkPolicy.allowance`."""
        policy = self._beside if num_decode_rows else self._alone
        return num_tokens if policy is None else min(num_tokens, policy.allowance(start, planned, num_decode_rows))

    def observe(self, chunks: Sequence[Chunk], num_decode_rows: int, elapsed_ms: float) -> None:
        """Let both learn of a step."""
        self._beside.observe(chunks, num_decode_rows, elapsed_ms)
        if self._alone is not None:
            self._alone.observe(chunks, num_decode_rows, elapsed_ms)


def _num_tokens(chunks: Iterable[Chunk]) -> int:
    return sum(num_tokens for _, num_tokens in chunks)


def _num_pairs(chunks: Iterable[Chunk]) -> float:
    return sum(num_tokens * (start + num_tokens / 2) for start, num_tokens in chunks)

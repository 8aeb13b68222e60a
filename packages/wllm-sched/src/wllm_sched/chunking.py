"""How many prefill tokens may share a step with decodes.

A prefill chunk delays every stream that decodes beside it. What a stream notices is time, and how long a token takes
differs a hundredfold between machines, so the limit is a time, and chunk sizes follow from measured steps. The engine
loop reports each step; the scheduler asks.
"""

from __future__ import annotations

from typing import Protocol


class ChunkPolicy(Protocol):
    """Chooses chunk sizes; learns from finished steps."""

    def allowance(self) -> int:
        """Prefill tokens allowed in a step that also decodes; at least 1."""

    def observe(self, num_prefill_tokens: int, num_decode_rows: int, elapsed_ms: float) -> None:
        """A step with so many tokens of each kind took `elapsed_ms`."""


class FixedChunks:
    """Always `num_tokens` prefill tokens beside decodes."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = max(num_tokens, 1)

    def allowance(self) -> int:
        """The fixed number."""
        return self._num_tokens

    def observe(self, num_prefill_tokens: int, num_decode_rows: int, elapsed_ms: float) -> None:
        """Learn nothing."""


class TimedChunks:
    """The largest multiple of 64 prefill tokens that keeps a mixed step under `max_stall_ms`, but at least `floor`.

    Predicts from running averages: the time of a step that only decodes, and the time that each prefill token adds.
    Until a prefill has been measured it allows `floor`.
    """

    MULTIPLE = 64
    WEIGHT = 0.2  # of the newest step in the running averages
    MIN_MEASURED_TOKENS = 16  # a step with fewer says more about its fixed cost than about a token's

    def __init__(self, max_stall_ms: float, *, floor: int = 128) -> None:
        self.max_stall_ms = max_stall_ms
        self.floor = floor
        self.decode_ms = 0.0
        self.token_ms = 0.0

    def allowance(self) -> int:
        """Prefill tokens whose predicted time fits beside one decode step."""
        if self.token_ms <= 0.0:
            return self.floor
        num_tokens = int((self.max_stall_ms - self.decode_ms) / self.token_ms)
        return max(num_tokens // self.MULTIPLE * self.MULTIPLE, self.floor)

    def observe(self, num_prefill_tokens: int, num_decode_rows: int, elapsed_ms: float) -> None:
        """Update the average that this kind of step says something about."""
        if num_prefill_tokens == 0:
            self.decode_ms = self._average(self.decode_ms, elapsed_ms)
        elif num_prefill_tokens >= self.MIN_MEASURED_TOKENS:
            base = self.decode_ms if num_decode_rows else 0.0
            self.token_ms = self._average(self.token_ms, max(elapsed_ms - base, 0.0) / num_prefill_tokens)

    def _average(self, old: float, new: float) -> float:
        return new if old == 0.0 else old + self.WEIGHT * (new - old)

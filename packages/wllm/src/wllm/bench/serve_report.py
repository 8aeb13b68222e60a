"""What a load run says: percentiles, throughput, goodput, failures, and whether the client was fast enough to tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wllm.bench.serve_load import LoadRun, Outcome

PERCENTILES = (50, 90, 99)
# Beyond these the client's own delays are part of what it reports.
MAX_LAG_MS = 5.0
MAX_CPU_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Goals:
    """What a request must reach to count as good; None: anything."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def met_by(self, outcome: Outcome) -> bool:
        """Whether this request was answered, and in time."""
        if outcome.failure is not None:
            return False
        first, each = outcome.times[0] * 1e3, time_per_token_ms(outcome)
        return (self.ttft_ms is None or first <= self.ttft_ms) and (
            self.tpot_ms is None or each is None or each <= self.tpot_ms
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a time over requests (or gaps): mean and percentiles in ms, None where there was none."""

    count: int
    mean: float | None
    percentiles: dict[int, float]

    @classmethod
    def of(cls, values_ms: Sequence[float]) -> Spread:
        """Of any number of values."""
        if not values_ms:
            return cls(0, None, {})
        ordered = sorted(values_ms)
        return cls(
            len(ordered),
            sum(ordered) / len(ordered),
            {percent: _percentile(ordered, percent) for percent in PERCENTILES},
        )


@dataclass(frozen=True, slots=True)
class ServeReport:
    """The figures of a run. Times in ms, rates a second, counts of whole requests only unless it says so.

    TTFT: from sending to the first token. TPOT: from the first to the last token, over the tokens after the first. ITL:
    between two events of a stream. E2E: from sending to the end.
    """

    requests: int
    completed: int
    failures: dict[str, int]
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    good: int | None  # None: no goals were given
    late: Spread
    lag: Spread
    cpu_share: float

    @classmethod
    def of(cls, run: LoadRun, goals: Goals) -> ServeReport:
        """The figures of `run`."""
        whole = [outcome for outcome in run.outcomes if outcome.failure is None]
        each = [time for outcome in whole if (time := time_per_token_ms(outcome)) is not None]
        gaps = [(b - a) * 1e3 for outcome in whole for a, b in pairwise(outcome.times)]
        return cls(
            requests=len(run.outcomes),
            completed=len(whole),
            failures=dict(Counter(outcome.failure for outcome in run.outcomes if outcome.failure is not None)),
            duration_s=run.duration_s,
            prompt_tokens=sum(outcome.prompt_tokens or 0 for outcome in whole),
            output_tokens=sum(outcome.output_tokens for outcome in whole),
            ttft=Spread.of([outcome.times[0] * 1e3 for outcome in whole]),
            tpot=Spread.of(each),
            itl=Spread.of(gaps),
            e2e=Spread.of([outcome.took_s * 1e3 for outcome in whole]),
            good=None if goals == Goals() else sum(map(goals.met_by, run.outcomes)),
            late=Spread.of([outcome.late_s * 1e3 for outcome in run.outcomes]),
            lag=Spread.of([lag * 1e3 for lag in run.lags_s]),
            cpu_share=run.cpu_share,
        )

    def a_second(self, count: float) -> float:
        """`count` over the duration."""
        return count / self.duration_s if self.duration_s else 0.0

    def warnings(self) -> Iterator[str]:
        """Reasons not to trust the figures."""
        lag = self.lag.percentiles.get(90, 0.0)
        if lag > MAX_LAG_MS or self.cpu_share > MAX_CPU_SHARE:
            yield (
                f"The client was the bottleneck: its event loop ran {lag:.1f} ms behind (p90) and used "
                f"{self.cpu_share:.0%} of a core. Times hold its own delays; run it on another machine, or at a lower "
                "--rate."
            )
        if self.failures:
            yield f"{sum(self.failures.values())} of {self.requests} requests failed; the figures leave them out."


def time_per_token_ms(outcome: Outcome) -> float | None:
    """TPOT; None for a single token."""
    if outcome.output_tokens < 2 or not outcome.times:
        return None
    return (outcome.times[-1] - outcome.times[0]) * 1e3 / (outcome.output_tokens - 1)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    # Linear between the two nearest ranks, as numpy does.
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

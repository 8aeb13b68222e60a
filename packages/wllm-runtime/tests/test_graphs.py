"""Which sizes get a graph, which are kept, and what happens when one cannot be captured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from itertools import pairwise

import pytest
import torch

from wllm_runtime.graphs import GraphSet, Replay, Timing, decode_bucket_sizes, mixed_bucket_sizes
from wllm_runtime.testing import RecordedGraphs


class TimedGraphs(RecordedGraphs):
    """Takes as long for a call as `seconds` says of the size that the call computes; the host is busy for `host_s`.

    Sizes in `no_room` find no memory, and `fail_at` cannot be captured at all.
    """

    def __init__(
        self,
        sizes: list[int],
        seconds: Callable[[int, bool], float],
        host_s: float,
        fail_at: int,
        no_room: Container[int],
    ) -> None:
        super().__init__()
        self._sizes, self._seconds, self._host_s = sizes, seconds, host_s
        self._fail_at, self._no_room = fail_at, no_room
        self._is_replay = False

    def capture(self, work: Callable[[], None]) -> Replay:
        self._sizes.clear()
        work()
        if self._sizes[0] == self._fail_at:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self._sizes[0] in self._no_room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        replay = super().capture(work)

        def timed() -> None:
            self._is_replay = True
            replay()

        return timed

    def measure(self, work: Callable[[], object]) -> Timing:
        self._sizes.clear()
        self._is_replay = False
        work()
        assert len(self._sizes) == 1
        return Timing(self._host_s, self._seconds(self._sizes[0], self._is_replay))


def graph_set(
    seconds: Callable[[int, bool], float],
    *,
    host_s: float = 1.0,
    fail_at: int = 0,
    no_room: Container[int] = (),
    max_rows: int = 20,
) -> GraphSet:
    computed: list[int] = []

    def mixed(num_tokens: int) -> torch.Tensor:
        computed.append(num_tokens)
        return torch.arange(num_tokens * 2.0).view(num_tokens, 2)

    backend = TimedGraphs(computed, seconds, host_s, fail_at, no_room)
    return GraphSet(backend, computed.append, mixed, max_rows=max_rows, max_tokens=320)


def host_is_the_limit(size: int, is_replay: bool) -> float:
    return size / 1000 if is_replay else 1.1


def test_sizes() -> None:
    assert decode_bucket_sizes(1) == [1]
    assert decode_bucket_sizes(20) == [1, 2, 4, 8, 12, 16, 20]
    assert decode_bucket_sizes(330)[-7:] == [208, 224, 240, 256, 288, 320, 330]
    assert mixed_bucket_sizes(40) == [40]
    assert mixed_bucket_sizes(320) == [64, 128, 192, 256, 320]
    large = mixed_bucket_sizes(10_000)
    assert large[-1] == 10_000 and large == sorted(set(large))
    assert all(above - below <= below / 8 for below, above in pairwise(large) if below >= 512)


def test_every_step_finds_the_smallest_bucket_that_fits() -> None:
    graphs = graph_set(host_is_the_limit)
    seen: list[tuple[int, int]] = []
    report = graphs.capture(lambda done, total: seen.append((done, total)))
    assert report.decode_rows == (1, 2, 4, 8, 12, 16, 20) and report.mixed_tokens == (64, 128, 192, 256, 320)
    assert (report.num_graphs, report.num_failures) == (12, 0)
    assert seen == [(done, 12) for done in range(1, 13)]
    for num_rows in range(1, 21):
        bucket = graphs.for_decode(num_rows)
        assert bucket is not None and bucket.size == min(size for size in report.decode_rows if size >= num_rows)
    assert graphs.for_decode(21) is None and graphs.for_mixed(321) is None
    bucket = graphs.for_mixed(65)
    assert bucket is not None and bucket.size == 128
    graphs.hidden.zero_()
    bucket.replay()
    assert graphs.hidden[:128].flatten().tolist() == list(range(256)) and not graphs.hidden[128:].any()


def test_a_decode_bucket_that_is_not_faster_than_a_larger_one_is_dropped() -> None:
    seconds = {1: 2.0, 2: 3.0, 4: 3.0, 8: 2.5, 12: 5.0, 16: 4.0, 20: 6.0}
    graphs = graph_set(lambda size, _: seconds.get(size, 0.1))
    assert graphs.capture(lambda done, total: None).decode_rows == (1, 8, 16, 20)


def test_prefill_has_graphs_up_to_where_the_gpu_is_the_limit() -> None:
    # Eager steps of up to 192 tokens wait for the host; of those, a replay of 64 is no faster.
    def seconds(size: int, is_replay: bool) -> float:
        if is_replay:
            return 1.1 if size == 64 else 0.5
        return 1.1 if size <= 192 else 1.3

    graphs = graph_set(seconds)
    assert graphs.capture(lambda done, total: None).mixed_tokens == (128, 192)
    assert len(graphs.hidden) == 192


def test_a_failed_capture_is_told_and_ends_capturing(caplog: pytest.LogCaptureFixture) -> None:
    graphs = graph_set(host_is_the_limit, fail_at=8)
    with caplog.at_level(logging.WARNING):
        report = graphs.capture(lambda done, total: None)
    assert report.decode_rows == (12, 16, 20) and report.mixed_tokens == ()
    assert graphs.num_failures == report.num_failures == 1
    (record,) = caplog.records
    assert "decode steps of 8" in record.message and "not permitted when stream is capturing" in record.message
    bucket = graphs.for_decode(1)  # larger buckets serve small steps too
    assert bucket is not None and bucket.size == 12
    assert graphs.for_mixed(1) is None


def test_sizes_without_room_are_skipped_and_told_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    graphs = graph_set(host_is_the_limit, no_room={16, 20, 256, 320})
    seen: list[tuple[int, int]] = []
    with caplog.at_level(logging.WARNING):
        report = graphs.capture(lambda done, total: seen.append((done, total)))
    assert report.decode_rows == (1, 2, 4, 8, 12) and report.mixed_tokens == (64, 128, 192)
    assert graphs.num_failures == report.num_failures == 4
    assert seen[-1] == (12, 12)
    (record,) = caplog.records
    assert "ran out for the CUDA graphs of decode steps of 16, 20 and mixed steps of 256, 320." in record.message
    assert graphs.for_decode(13) is None and graphs.for_mixed(193) is None


def test_a_failure_after_memory_ran_out_ends_capturing(caplog: pytest.LogCaptureFixture) -> None:
    graphs = graph_set(host_is_the_limit, no_room={20}, fail_at=12)
    with caplog.at_level(logging.WARNING):
        report = graphs.capture(lambda done, total: None)
    assert report.decode_rows == (16,) and report.mixed_tokens == ()
    assert graphs.num_failures == 2
    assert [("could not" in r.message, "ran out" in r.message) for r in caplog.records] == [
        (True, False),
        (False, True),
    ]

"""The engine's bookkeeping: turns, aborts, refusals, the end; over a head that only counts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from wllm_runtime.gpu_memory import GpuMemory
from wllm_runtime.pooling import engine as engine_module
from wllm_runtime.pooling.batches import groups_of
from wllm_runtime.pooling.engine import PoolingEngine, longest_rows
from wllm_sched import (
    Abort,
    DeviceLost,
    EngineClosed,
    ModelInfo,
    Pool,
    PooledText,
    Pooler,
    RequestRefused,
    SamplingParams,
    Submit,
)
from wllm_sched.text_queue import QueuedText

INFO = ModelInfo(
    model="counting",
    architecture="Counting",
    tokenizer_json=None,
    chat_template=None,
    special_tokens={},
    eos_token_ids=(),
    bos_token_id=None,
    vocab_size=100,
    max_model_len=50,
    num_kv_blocks=0,
    block_size=16,
    dtype="float32",
    device="cpu",
    task="embed",
    vector_size=2,
)


class CountingHead:
    """The vector of a text is its length and its first token; a first token of 99 overflows."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def vectors(self, texts: Sequence[PooledText]) -> torch.Tensor:
        self.sizes.append((len(texts), max(len(text.token_ids) for text in texts)))
        firsts = [text.token_ids[0] for text in texts]
        rows = [[len(text.token_ids), float("inf") if first == 99 else first] for text, first in zip(texts, firsts)]
        return torch.tensor(rows, dtype=torch.float32)


@pytest.fixture
def head() -> CountingHead:
    return CountingHead()


@pytest.fixture
def engine(head: CountingHead) -> PoolingEngine:
    return PoolingEngine(head, INFO, max_texts=4, max_tokens=60, normalizes=False)


def test_each_text_gets_its_own_vector(engine: PoolingEngine) -> None:
    assert isinstance(engine, Pooler)
    lengths = [30, 1, 50, 2, 7, 7, 41]
    engine.pool(Pool(5, [PooledText([n] * length) for n, length in enumerate(lengths)]))
    assert engine.stats().num_waiting == 7
    found = {}
    while engine.has_work():
        for event in engine.step():
            assert (event.request_id, event.finish_reason) == (5, "stop")
            found[event.index] = tuple(np.frombuffer(event.vector or b"", "<f4"))
    assert found == {n: (length, n) for n, length in enumerate(lengths)}
    assert engine.stats().num_waiting == 0
    assert engine.stats().prompt_tokens_total == sum(lengths)


def test_what_is_aborted_is_not_computed(engine: PoolingEngine, head: CountingHead) -> None:
    engine.pool(Pool(1, [PooledText([1] * 50) for _ in range(5)]))
    engine.pool(Pool(2, [PooledText([2] * 3)]))
    first = engine.step()
    engine.abort(Abort(1))
    events = [*first, *(event for _ in range(3) for event in engine.step())]
    assert not engine.has_work()
    reasons = {(event.request_id, event.index): event.finish_reason for event in events}
    assert len(events) == len(reasons) == 6
    assert sorted(reason for (number, _), reason in reasons.items() if number == 1) == [*["abort"] * 4, "stop"]
    assert sum(rows for rows, _ in head.sizes) == 2


def test_numbers_that_overflow_fail_their_text_alone(engine: PoolingEngine) -> None:
    engine.pool(Pool(1, [PooledText([99]), PooledText([3])]))
    failed, good = sorted(engine.step(), key=lambda event: event.index)
    assert (failed.finish_reason, failed.vector) == ("error", None)
    assert "--dtype float32" in (failed.error or "")
    assert good.finish_reason == "stop"


def test_other_requests_are_refused(engine: PoolingEngine) -> None:
    with pytest.raises(RequestRefused, match="writes no text"):
        engine.submit(Submit(0, [1], SamplingParams()))
    with pytest.raises(RequestRefused, match="maximum context length is 50"):
        engine.pool(Pool(0, [PooledText([1] * 51)]))
    assert not engine.has_work()


def test_a_closed_engine_takes_nothing(engine: PoolingEngine) -> None:
    engine.close()
    engine.close()
    for call in (lambda: engine.pool(Pool(0, [PooledText([1])])), engine.step):
        with pytest.raises(EngineClosed):
            call()


def test_memory_that_windows_moves_is_among_the_counters(head: CountingHead) -> None:
    gpu = cast(GpuMemory, SimpleNamespace(spilled=lambda: 7, release=lambda: None))
    engine = PoolingEngine(head, INFO, max_texts=4, max_tokens=60, normalizes=False, gpu=gpu)
    assert engine.stats().gpu_spilled_bytes == 7
    engine.close()
    assert engine.stats().gpu_spilled_bytes == 0


def test_rows_of_a_group_are_of_like_lengths() -> None:
    lengths = [1, 2, 30, 31, 200, 9, 240, 10, 500]
    request = Pool(0, [PooledText([1] * length) for length in lengths])
    groups = groups_of([QueuedText(request, number) for number in range(len(lengths))])
    assert [[queued.length for queued in group] for group in groups] == [[1, 2, 9], [10], [30, 31], [200, 240], [500]]


def test_the_largest_step_is_full() -> None:
    assert longest_rows(512, 256) == [256, 256]
    assert longest_rows(512, 8192) == [8192]


def test_however_requests_end_nothing_of_them_stays(engine: PoolingEngine) -> None:
    class Ids(list[int]):
        """Token ids whose end can be watched."""

    watched = []
    gc.collect()
    gc.disable()
    try:
        for number, first in enumerate([1, 99, 1, 200]):
            ids = Ids([first] * 5)
            watched.append(weakref.ref(ids))
            request = Pool(number, [PooledText(ids)] * 9)
            with suppress(RequestRefused):
                engine.pool(request)
            if number == 2:
                engine.step()
                engine.abort(Abort(number))
            del ids, request
            ends = {event.finish_reason for _ in range(9) for event in engine.step()}
            assert ends == [{"stop"}, {"error"}, {"abort"}, set()][number]
        assert [one() for one in watched] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_lost_device_is_told(is_lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(device: torch.device) -> None:
        assert device.type == "cpu"
        if is_lost:
            raise DeviceLost("lost")

    def fail(texts: Sequence[PooledText]) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: unknown error")

    monkeypatch.setattr(engine_module, "check_device", check)
    head = CountingHead()
    monkeypatch.setattr(head, "vectors", fail)
    engine = PoolingEngine(head, INFO, max_texts=4, max_tokens=100, normalizes=False)
    engine.pool(Pool(0, [PooledText([1])], None, None))
    with pytest.raises(DeviceLost if is_lost else torch.AcceleratorError):
        engine.step()
    with pytest.raises(DeviceLost) if is_lost else nullcontext():
        engine.check_device()

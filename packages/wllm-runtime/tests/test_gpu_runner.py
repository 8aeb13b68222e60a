"""The runner on a GPU: what a decode step asks of the driver (I16), and that graphs give what eager steps give."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from wllm_runtime import EngineConfig
from wllm_runtime import cuda_graphs as cuda_graphs_module
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_runtime.memory import MIB
from wllm_runtime.testing import generate, save_tiny_llama, tokens_of
from wllm_sched import SamplingParams, Submit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
]
STEPS = 100
MAX_CALLS = 8
# Questions that the driver's library answers by itself: nothing is enqueued, nothing waited for.
QUESTIONS = {"cudaStreamIsCapturing", "cudaStreamGetCaptureInfo_v2", "cudaGetDevice", "cudaGetLastError"}


def open_engine(folder: Path, **settings: Any) -> ModelEngine:
    save_tiny_llama(folder, head_dim=64, hidden_size=256, num_hidden_layers=4)
    sizes: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "num_kv_blocks": 256}
    return create_engine(
        EngineConfig(model=str(folder), skip_tokenizer_init=True, device="cuda", dtype="float16", **(sizes | settings))
    )


@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.9}])
def test_driver_calls_of_a_decode_step(tmp_path: Path, rows: int, params: dict[str, Any]) -> None:
    engine = open_engine(tmp_path)
    for request_id in range(rows):
        asked = SamplingParams(max_tokens=120, ignore_eos=True, **params)
        engine.submit(Submit(request_id, [5, 6, 7 + request_id], asked))
    for _ in range(10):
        engine.step()
    replays = engine.stats().graph_replays_total
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            engine.step()
    assert engine.stats().graph_replays_total - replays == STEPS
    events = profiler.profiler.kineto_results.events()
    calls = Counter(
        event.name()
        for event in events
        if event.device_type() == torch.autograd.DeviceType.CPU and event.name().startswith("cu")
    )
    asked_of_driver = {name: count for name, count in calls.items() if name not in QUESTIONS}
    print({name: count / STEPS for name, count in calls.items()})
    assert calls["cudaGraphLaunch"] + calls["cuGraphLaunch"] == STEPS, calls
    # The profiler's own synchronisation at the end comes on top.
    assert sum(asked_of_driver.values()) <= MAX_CALLS * STEPS + 4, asked_of_driver
    engine.close()


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_graphs_draw_what_eager_steps_draw(tmp_path: Path, kv_cache_dtype: str) -> None:
    drawn = []
    for eager in (False, True):
        engine = open_engine(tmp_path, enforce_eager=eager, kv_cache_dtype=kv_cache_dtype)
        answers = [
            tokens_of(generate(engine, list(range(3, 3 + length)), max_tokens=30, ignore_eos=True, **params))
            for length in (1, 17, 80)
            for params in ({"temperature": 0}, {"temperature": 1.0, "seed": 3, "top_k": 20})
        ]
        assert (engine.stats().graph_replays_total > 0) != eager
        assert engine.stats().graph_failures_total == 0
        drawn.append(answers)
        engine.close()
    # Other kernels serve other sizes, and half precision rounds: most answers are the same, all of them begin alike.
    assert all(graphed[0] == eager[0] for graphed, eager in zip(*drawn, strict=True))
    assert sum(graphed == eager for graphed, eager in zip(*drawn, strict=True)) >= len(drawn[0]) - 1


def test_a_step_that_cannot_be_captured_runs_eagerly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    capture = cuda_graphs_module.CudaGraphs.capture

    def synchronising(self: Any, work: Any) -> Any:
        def spoilt() -> None:
            work()
            if torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()

        return capture(self, spoilt)

    monkeypatch.setattr(cuda_graphs_module.CudaGraphs, "capture", synchronising)
    engine = open_engine(tmp_path)
    assert len(tokens_of(generate(engine, [5, 6, 7], temperature=0, max_tokens=20, ignore_eos=True))) == 20
    stats = engine.stats()
    assert stats.graph_failures_total == 1 and stats.graph_replays_total == 0
    assert stats.eager_steps_total == stats.steps_total
    assert "could not be captured" in caplog.text
    engine.close()
    held = torch.cuda.memory_reserved()
    assert torch.empty(256 * MIB, dtype=torch.uint8, device="cuda").numel() == 256 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held, "what torch caches is stuck since the capture that broke"


def test_steps_keep_to_their_stream_inside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(tmp_path)
    sampler = engine._model_runner._sampler
    sample, streams = sampler.sample, set()

    def noted(*args: Any) -> Any:
        streams.add(torch.cuda.current_stream())
        return sample(*args)

    monkeypatch.setattr(sampler, "sample", noted)
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    expected = tokens_of(generate(engine, [5, 6, 7], **greedy))
    engine.submit(Submit(1, [5, 6, 7], SamplingParams(**greedy)))
    events, others = [], [torch.cuda.Stream() for _ in range(3)]
    for number in count():
        if not engine.has_work():
            break
        with torch.cuda.stream(others[number % 3]):  # steps in flight begin in several
            events += engine.step()
    assert tokens_of(events) == expected
    assert streams == {torch.cuda.default_stream()}
    engine.close()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_an_engine_on_a_gpu_that_is_not_the_callers(tmp_path: Path) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    with torch.cuda.device(1):
        engine = open_engine(tmp_path)
        expected = tokens_of(generate(engine, [5, 6, 7], **greedy))
    assert torch.cuda.current_device() == 0
    events = generate(engine, [5, 6, 7], **greedy)
    assert tokens_of(events) == expected and torch.cuda.current_device() == 0
    assert engine.stats().graph_replays_total > 0 and engine.stats().graph_failures_total == 0
    engine.close()

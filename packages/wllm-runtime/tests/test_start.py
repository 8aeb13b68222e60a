"""The start of an engine on a GPU, over a device that only counts: what it prints, makes ready and gives back."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from wllm_kernels import NoKernel
from wllm_runtime import EngineConfig, OutOfMemory
from wllm_runtime import engine as engine_module
from wllm_runtime import runner as runner_module
from wllm_runtime.engine import create_engine
from wllm_runtime.gpu_memory import GpuMemory
from wllm_runtime.graphs import GraphReport, Replay, Timing
from wllm_runtime.runner import ModelRunner
from wllm_runtime.streams import Handle, Step, WorkerStream
from wllm_runtime.testing import RecordedGraphs, generate, save_tiny_llama, tokens_of
from wllm_sched import SamplingParams, Submit

T = TypeVar("T")
GIB = 1 << 30


@pytest.fixture
def device(counting_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device of 12 GiB for engines that compute on the CPU, with graphs that are recorded calls."""
    made = counting_device(total=12 * GIB, others=2 * GIB)
    monkeypatch.setattr(
        engine_module, "open_gpu", lambda device, config: GpuMemory(device, config.gpu_memory_utilization)
    )
    monkeypatch.setattr(runner_module, "graph_backend", lambda _: RecordedGraphs())
    return made


def config_of(folder: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder), skip_tokenizer_init=True, max_num_seqs=4, max_num_batched_tokens=128, **settings
    )


def test_the_sum_is_printed_and_graphs_are_ready(device: Any, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    engine = create_engine(config_of(tmp_path))
    rows = {name: (value, reason) for name, value, reason in engine.model_info.settings}
    terms = [name.removeprefix("memory: ") for name in rows if name.startswith("memory: ")]
    assert terms == ["free", "usable", "weights", "activations", "tables", "graphs", "cuda", "kv", "used"]
    assert rows["memory: free"] == (
        "10,240 MiB",
        "of 12,288 MiB when the engine started; the driver says 10,240, NVML gives no figure",
    )
    assert rows["memory: usable"][0] == "9,216 MiB"
    # Decode buckets of 1, 2 and 4 rows, buckets of 64 and 128 tokens.
    assert rows["cuda_graphs"][0] == "5"
    assert "decode steps of up to 4 rows, prefill of up to 128 tokens" in rows["cuda_graphs"][1]
    assert "graphs" in rows["start"][1] and "weights" in rows["start"][1]
    assert len(tokens_of(generate(engine, [5, 6, 7], temperature=0, max_tokens=10, ignore_eos=True))) == 10
    assert (engine.stats().graph_replays_total, engine.stats().eager_steps_total) == (10, 0)
    assert device.fraction < 10 / 12
    engine.close()
    engine.close()
    assert device.fraction == 1.0
    assert engine.stats().graph_replays_total == 10


def test_graphs_are_captured_timed_and_replayed_within_steps(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is where the stream has made its device and itself current."""
    save_tiny_llama(tmp_path)
    within = threading.local()
    calls = Counter[str]()

    class Stream(WorkerStream):
        def submit(self, step: Step[T]) -> Handle[T]:
            def marked() -> Callable[[], T]:
                within.step = True
                return step()

            return super().submit(marked)

    class Graphs(RecordedGraphs):
        def note(self, what: str) -> None:
            assert within.step
            calls[what] += 1

        def capture(self, work: Callable[[], None]) -> Replay:
            self.note("capture")
            replay = super().capture(work)

            def noted() -> None:
                self.note("replay")
                replay()

            return noted

        def measure(self, work: Callable[[], object]) -> Timing:
            self.note("measure")
            return super().measure(work)

    monkeypatch.setattr(runner_module, "open_stream", lambda device, depth, spin: Stream())
    monkeypatch.setattr(runner_module, "graph_backend", lambda _: Graphs())
    engine = create_engine(config_of(tmp_path))
    generate(engine, [5, 6, 7], temperature=0, max_tokens=4, ignore_eos=True)
    engine.close()
    assert (calls["capture"], calls["replay"]) == (5, 4) and calls["measure"] > 0


def test_an_engine_that_fails_at_its_end_gives_its_memory_back(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_llama(tmp_path)
    engine = create_engine(config_of(tmp_path))
    engine.submit(Submit(0, [5, 6, 7], SamplingParams(max_tokens=8)))
    engine.step()
    model = weakref.ref(engine._model_runner)

    def fail() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(engine, "drain", fail)
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        engine.close()
    engine.close()
    assert device.fraction == 1.0 and model() is None
    assert engine.stats().graph_replays_total == 1


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        ({}, {"enforce_eager": True}, "enforce_eager as given"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, {}, "depends on lengths"),
    ],
)
def test_an_engine_without_graphs_plans_none_and_says_why(
    device: Any, tmp_path: Path, model: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    save_tiny_llama(tmp_path, **model)
    engine = create_engine(config_of(tmp_path, **settings))
    rows = {name: (value, reason) for name, value, reason in engine.model_info.settings}
    assert (rows["cuda_graphs"][0], rows["memory: graphs"][0]) == ("off", "0 MiB")
    assert why in rows["cuda_graphs"][1]
    generate(engine, [5, 6, 7], temperature=0, max_tokens=10, ignore_eos=True)
    assert (engine.stats().graph_replays_total, engine.stats().eager_steps_total) == (0, 10)
    engine.close()


def test_more_than_was_planned_is_a_warning(device: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny_llama(tmp_path)

    class Greedy(RecordedGraphs):
        def capture(self, work: Any) -> Any:
            device.take(100 << 20)
            return super().capture(work)

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(runner_module, "graph_backend", lambda _: Greedy())
        create_engine(config_of(tmp_path)).close()
    assert "I19: the engine takes 500 MiB of GPU memory, and " in caplog.text


def test_a_gpu_that_cannot_run_models_is_told_before_any_weights(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R47."""
    save_tiny_llama(tmp_path)

    def refuse(device: torch.device) -> None:
        raise NoKernel("no code for Stub GPU (sm_130)")

    monkeypatch.setattr(engine_module, "check_gpu", refuse)
    monkeypatch.setattr(engine_module, "build_model", lambda *_: pytest.fail("a model was built"))
    with pytest.raises(NoKernel, match="Stub GPU"):
        create_engine(config_of(tmp_path))


def test_weights_that_do_not_fit_are_never_loaded(
    counting_device: Callable[..., Any], device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_llama(tmp_path)
    counting_device(total=12 * GIB, others=12 * GIB - (1 << 20))
    monkeypatch.setattr(torch.nn.Module, "eval", lambda self: pytest.fail("a model was built"))
    with pytest.raises(OutOfMemory, match="the model's weights take 0 MiB, and the GPU has 1 MiB free"):
        create_engine(config_of(tmp_path))


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [
        (engine_module, "build_model", "the weights do not fit"),
        (engine_module, "_make_ready", "the steps do not fit"),
        (ModelRunner, "capture", "the steps do not fit"),
    ],
)
def test_memory_that_ends_while_starting_is_told(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, what: str
) -> None:
    save_tiny_llama(tmp_path)
    monkeypatch.setattr(owner, name, lambda *_: device.take(12 * GIB))
    with pytest.raises(OutOfMemory, match=rf"{what}: 10,240 MiB were free .* MiB are in use; .*gpu_memory_utilization"):
        create_engine(config_of(tmp_path))


def test_memory_that_windows_moves_is_among_the_counters(
    device: Any, counting_device: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_llama(tmp_path)
    monkeypatch.setattr("wllm_runtime.spill._INTERVAL_S", 0.0)
    adapter = counting_device(total=12 * GIB, budget=10 * GIB).adapter
    engine = create_engine(config_of(tmp_path))
    assert engine.stats().gpu_spilled_bytes == 0  # all is where the engine put it
    adapter.held = GIB
    assert engine.stats().gpu_spilled_bytes == GIB
    engine.close()
    assert not adapter.open
    assert engine.stats().gpu_spilled_bytes == GIB


def test_the_largest_step_has_its_memory_before_graphs_take_any(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_llama(tmp_path)
    log: list[object] = []
    rehearse, capture = ModelRunner.rehearse, ModelRunner.capture

    def note_step(runner: ModelRunner, num_tokens: int, num_rows: int) -> None:
        log.append((num_tokens, num_rows))
        rehearse(runner, num_tokens, num_rows)

    def note_capture(runner: ModelRunner, on_progress: Callable[[int, int], None]) -> GraphReport:
        log.append("graphs")
        return capture(runner, on_progress)

    monkeypatch.setattr(ModelRunner, "rehearse", note_step)
    monkeypatch.setattr(ModelRunner, "capture", note_capture)
    create_engine(config_of(tmp_path)).close()
    measured = (128, 64)  # with rows for as many prompt positions as are scored at once
    assert log == [measured, (1, 1), (128, 4), "graphs"]


def test_programs_without_a_console_start(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_llama(tmp_path)
    monkeypatch.setattr(sys, "stderr", None)
    engine = create_engine(config_of(tmp_path))
    assert len(tokens_of(generate(engine, [5], temperature=0, max_tokens=3, ignore_eos=True))) == 3
    engine.close()

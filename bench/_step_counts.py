"""Counts of a step: a tiny model on a GPU that only counts, in the situations that a step can be in."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _calls import count_calls
from _recording import Recorder, recording_gpu

from wllm.bench.shapes import write_shape
from wllm_kernels import sample_workspace_bytes
from wllm_runtime.config import EngineConfig
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_sched import SamplingParams, Submit

PACKAGES = ("wllm_sched", "wllm_cache", "wllm_runtime", "wllm_kernels")
STEPS = 16  # a block's worth: the steps in which a row gets its next block are among them
SETTLE = 6


@dataclass(frozen=True)
class Case:
    """`rows` requests with prompts of `prompt` tokens: the worst of some decode steps, or with `prefill` the first."""

    rows: int
    prompt: int = 24
    graphs: bool = True
    prefill: bool = False
    params: Mapping[str, Any] | None = None


CASES: Mapping[str, Case] = {
    "decode, 1 row": Case(1),
    "decode, 16 rows": Case(16),
    "decode, 16 rows, sampled": Case(16, params={"temperature": 0.8, "top_p": 0.9}),
    "decode, 16 rows, penalties": Case(16, params={"presence_penalty": 0.5}),
    "decode, 16 rows, logprobs": Case(16, params={"logprobs": 5}),
    "decode, 16 rows, no graphs": Case(16, graphs=False),
    "prefill, 48 tokens": Case(1, prompt=48, prefill=True),
    "prefill, 48 tokens, no graphs": Case(1, prompt=48, prefill=True, graphs=False),
}


def step_counts() -> dict[str, dict[str, int]]:
    """By case and by what is counted. On a GPU each step records an event besides, one more call to the device."""
    counts = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, recording_gpu() as recorder:
        model = write_shape("tiny", Path(folder))
        for name, case in CASES.items():
            counts[name] = _count(case, str(model), recorder)
    return counts


def _count(case: Case, model: str, recorder: Recorder) -> dict[str, int]:
    engine = create_engine(
        EngineConfig(
            model=model,
            device="cpu",
            dtype="bfloat16",
            load_format="dummy",
            skip_tokenizer_init=True,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            num_kv_blocks=256,
            enforce_eager=not case.graphs,
        )
    )
    try:
        _finish_as_on_cuda(engine)
        if case.prefill:
            # The pipeline is empty, so this step is all there is.
            _submit(engine, case, 100)
            return _worst(engine, recorder, steps=1)
        for request_id in range(case.rows):
            _submit(engine, case, request_id)
        for _ in range(SETTLE):
            engine.step()
        return _worst(engine, recorder, STEPS)
    finally:
        engine.close()


def _finish_as_on_cuda(engine: ModelEngine) -> None:
    runner = engine._model_runner
    runner.rehearse(1, 1)
    runner.capture(lambda done, total: None)
    # On a CPU there is none to keep.
    num_bytes = sample_workspace_bytes(16, runner._sampler._vocab_size, adjusted=False)
    runner._sampler._workspace = torch.zeros(num_bytes, dtype=torch.uint8)


def _submit(engine: ModelEngine, case: Case, request_id: int) -> None:
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 200, "ignore_eos": True, **(case.params or {})}
    prompt: Sequence[int] = [3 + (request_id * 31 + position) % 500 for position in range(case.prompt)]
    engine.submit(Submit(request_id, prompt, SamplingParams(**params)))


def _worst(engine: ModelEngine, recorder: Recorder, steps: int) -> dict[str, int]:
    worst: dict[str, int] = {}
    for _ in range(steps):
        recorder.outside.clear()
        recorder.inside.clear()
        recorder.counting = True
        calls = count_calls(engine.step, PACKAGES)
        recorder.counting = False
        outside, inside = recorder.outside, recorder.inside
        step = {
            "calls to the device": outside["kernels"] + outside["torch"] + outside["replays"],
            "graph replays": outside["replays"],
            "kernels outside graphs": outside["kernels"],
            "torch ops outside graphs": outside["torch"],
            "tensors allocated": outside["allocations"],
            "ops of wllm-kernels": outside["ops"] + inside["ops"],
            "kernels in graphs": inside["kernels"],
            "torch ops in graphs": inside["torch"],
            "Python calls": calls,
        }
        worst = {name: max(count, worst.get(name, 0)) for name, count in step.items()}
    return worst

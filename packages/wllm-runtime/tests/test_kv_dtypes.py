"""8-bit KV caches, end to end: tokens are those of a reference whose keys and values are rounded in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from wllm_runtime import EngineConfig
from wllm_runtime.config import KVCacheDType
from wllm_runtime.engine import create_engine
from wllm_runtime.testing import generate, save_tiny_llama, tokens_of
from wllm_runtime.testing_cache import RoundedCache, cache_argument, to_fp8, to_int8

PROMPTS = [[3 + first, *range(5, 30)] for first in range(4)]
# The engine's last bit before the rounding is not the reference's: now and then a value falls to its other neighbour.
NEAR = 0.02


def worst_gap(model: Any, prompt: list[int], tokens: list[int], cache: Any = None) -> float:
    """How much likelier than a chosen token the reference's best one was, at most."""
    with torch.inference_mode():
        scores = model(torch.tensor([prompt + tokens]), **{cache_argument(model): cache}).logits[0]
    rows = scores.float().log_softmax(-1)[len(prompt) - 1 : -1]
    assert len(rows) == len(tokens) == 60
    return float((rows.amax(-1) - rows[torch.arange(len(tokens)), tokens]).max())


@pytest.mark.parametrize(("kv_cache_dtype", "rounding"), [("int8", to_int8), ("fp8", to_fp8)])
def test_tokens_are_those_of_rounded_keys_and_values(
    tmp_path: Path, kv_cache_dtype: KVCacheDType, rounding: Any
) -> None:
    model = save_tiny_llama(tmp_path)
    config = EngineConfig(
        model=str(tmp_path), skip_tokenizer_init=True, kv_cache_dtype=kv_cache_dtype, max_num_batched_tokens=64
    )
    engine = create_engine(config)
    try:
        answers = [
            tokens_of(generate(engine, prompt, temperature=0, max_tokens=60, ignore_eos=True)) for prompt in PROMPTS
        ]
    finally:
        engine.close()
    assert max(worst_gap(model, *pair, RoundedCache(rounding)) for pair in zip(PROMPTS, answers, strict=True)) <= NEAR
    # The rounding shows: these are not the tokens of full precision, or the test would see nothing.
    assert max(worst_gap(model, *pair) for pair in zip(PROMPTS, answers, strict=True)) > 0
    assert (("kv_cache_dtype", kv_cache_dtype)) in [row[:2] for row in engine.model_info.settings]


def test_int8_keeps_the_answers(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)
    engine = create_engine(EngineConfig(model=str(tmp_path), skip_tokenizer_init=True, kv_cache_dtype="int8"))
    for prompt in PROMPTS:
        tokens = tokens_of(generate(engine, prompt, temperature=0, max_tokens=60, ignore_eos=True))
        assert worst_gap(model, prompt, tokens) <= 0.1
    engine.close()

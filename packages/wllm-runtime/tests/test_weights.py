"""Every tensor of a checkpoint goes to its place, and a checkpoint that does not fit is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load, save_file
from transformers import AutoModelForCausalLM

from wllm_runtime import EngineConfig, WeightsError
from wllm_runtime.checkpoint import UnsupportedCheckpoint
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_runtime.testing import generate, save_tiny_llama, tokens_of


def engine_of(folder: Path, **settings: object) -> ModelEngine:
    return create_engine(EngineConfig(model=str(folder), skip_tokenizer_init=True, **settings))  # type: ignore[arg-type]


def change(folder: Path, add: dict[str, torch.Tensor], remove: tuple[str, ...] = ()) -> None:
    file = folder / "model.safetensors"
    tensors = load(file.read_bytes()) | add  # not mapped: Windows would not let it be replaced
    save_file({name: tensors[name] for name in tensors if name not in remove}, file)


def test_tied_model_that_stores_its_head_answers_like_the_original(tmp_path: Path) -> None:
    """R39."""
    model = save_tiny_llama(tmp_path, tie_word_embeddings=True)
    original = tokens_of(generate(engine_of(tmp_path), [5, 6, 7], temperature=0, max_tokens=12))
    change(tmp_path, {"lm_head.weight": model.get_input_embeddings().weight.detach().clone()})
    assert tokens_of(generate(engine_of(tmp_path), [5, 6, 7], temperature=0, max_tokens=12)) == original


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_that_differs_from_the_embedding_is_the_models(
    tmp_path: Path, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_tiny_llama(tmp_path, tie_word_embeddings=True)
    change(tmp_path, {"lm_head.weight": model.get_input_embeddings().weight.detach().flip(0).to(dtype).contiguous()})
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = reference.generate(
        torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    found = tokens_of(generate(engine_of(tmp_path), [5, 6, 7], temperature=0, max_tokens=12, ignore_eos=True))
    assert found == expected[0, 3:].tolist()
    assert "stores a head that differs" in caplog.text


def test_a_head_of_another_size_is_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, tie_word_embeddings=True)
    change(tmp_path, {"lm_head.weight": torch.zeros(7, 32)})
    with pytest.raises(WeightsError, match=r"lm_head\.weight has the shape \(7, 32\)"):
        engine_of(tmp_path)


def test_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    """R39."""
    save_tiny_llama(tmp_path, tie_word_embeddings=False)
    change(tmp_path, {}, remove=("lm_head.weight",))
    with pytest.raises(WeightsError, match=r"lacks 1 tensors: lm_head\.weight.*tie_word_embeddings"):
        engine_of(tmp_path)


def test_missing_layer_tensor_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    change(tmp_path, {}, remove=("model.layers.1.mlp.up_proj.weight",))
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        engine_of(tmp_path)


def test_tensor_that_the_config_does_not_know_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    change(tmp_path, {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)})
    with pytest.raises(WeightsError, match=r"q_proj\.bias"):
        engine_of(tmp_path)


def test_wrong_shape_is_told_with_both_shapes(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    change(tmp_path, {"model.norm.weight": torch.ones(31)})
    with pytest.raises(WeightsError, match=r"\(31,\).*\(32,\)"):
        engine_of(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.complex64, torch.bool])
def test_numbers_that_are_no_weights_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    save_tiny_llama(tmp_path)
    change(tmp_path, {"model.norm.weight": torch.ones(32, dtype=dtype)})
    with pytest.raises(UnsupportedCheckpoint, match=rf"'model\.norm\.weight' as {dtype}, so its weights are quantised"):
        engine_of(tmp_path)


def test_computed_frequencies_in_old_files_are_passed_over(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    change(tmp_path, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    engine_of(tmp_path)


def test_dummy_weights_need_no_file_and_follow_the_seed(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first, same, other = (
        tokens_of(generate(engine_of(tmp_path, load_format="dummy", seed=seed), [5], temperature=0, max_tokens=8))
        for seed in (1, 1, 2)
    )
    assert first == same != other


def test_files_can_be_replaced_while_the_engine_runs(tmp_path: Path) -> None:
    """Read, not mapped: on Windows a file that is open or mapped cannot be replaced."""
    save_tiny_llama(tmp_path)
    engine = engine_of(tmp_path)
    process = psutil.Process()
    in_use = [file.path for file in process.open_files()]
    if sys.platform == "linux":
        in_use += [mapped.path for mapped in process.memory_maps()]
    assert not [name for name in in_use if name.startswith(str(tmp_path))]
    for path in [*tmp_path.iterdir()]:
        other = path.with_suffix(".new")
        other.write_bytes(b"")
        other.replace(path)
    assert tokens_of(generate(engine, [5, 6, 7], max_tokens=2, ignore_eos=True))

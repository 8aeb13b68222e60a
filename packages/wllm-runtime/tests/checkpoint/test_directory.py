"""Model directories: configuration, end tokens, recommended sampling, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from wllm_runtime.checkpoint import (
    CheckpointError,
    DamagedCheckpoint,
    ModelNotFound,
    UnsupportedCheckpoint,
    open_checkpoint,
)


def edit(path: Path, **values: Any) -> None:
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    data.update(values)
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}), encoding="utf-8")


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_weights_and_config_are_those_saved(model_type: str, make_model: Any, tmp_path: Path) -> None:
    model: PreTrainedModel = make_model(model_type)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path, skip_tokenizer=True)
    assert checkpoint.format == "safetensors" and checkpoint.tokenizer_json is None
    assert checkpoint.config.model_type == model_type
    assert checkpoint.config.hidden_size == 32 and checkpoint.config.num_key_value_heads == 2
    expected = model.state_dict()
    assert checkpoint.weights is not None and set(checkpoint.weights.names()) == set(expected)
    for name in checkpoint.weights.names():
        assert torch.equal(checkpoint.weights.read(name), expected[name])


def test_path_with_spaces_and_cyrillic(model_dir: Path) -> None:
    """R43."""
    assert "Загрузки" in str(model_dir) and " " in str(model_dir)
    checkpoint = open_checkpoint(str(model_dir))
    assert checkpoint.path == model_dir
    assert checkpoint.tokenizer_json == (model_dir / "tokenizer.json").read_text(encoding="utf-8")
    assert checkpoint.weights is not None
    assert checkpoint.weights.read("model.norm.weight").shape == (32,)


@pytest.mark.parametrize("spelling", ["old", "new"])
def test_rope_scaling_and_dtype_in_both_spellings(spelling: str, model_dir: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    if spelling == "old":
        values: dict[str, Any] = {"rope_scaling": scaling, "rope_theta": 5e5, "torch_dtype": "bfloat16"}
        values |= {"rope_parameters": ..., "dtype": ...}
    else:
        values = {"rope_parameters": {**scaling, "rope_theta": 5e5}, "dtype": "bfloat16"}
    edit(model_dir / "config.json", **values)
    config = open_checkpoint(model_dir).config
    assert config.rope_parameters == {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
    assert config.dtype == torch.bfloat16


def test_any_listed_end_token_ends(model_dir: Path) -> None:
    """R38; what an answer does then: tests/cases/test_scheduling.py."""
    edit(model_dir / "generation_config.json", eos_token_id=[2, 17])
    edit(model_dir / "config.json", eos_token_id=5)
    edit(model_dir / "tokenizer_config.json", eos_token="<|endoftext|>")
    assert open_checkpoint(model_dir).eos_token_ids == (2, 17, 5, 0)


def test_end_token_of_a_config_alone(model_dir: Path) -> None:
    (model_dir / "generation_config.json").unlink()
    assert open_checkpoint(model_dir).eos_token_ids == (2,)


@pytest.mark.parametrize("value", ["</s>", [2, "x"], -1, True])
def test_odd_end_token_is_named(value: object, model_dir: Path) -> None:
    edit(model_dir / "generation_config.json", eos_token_id=value)
    with pytest.raises(DamagedCheckpoint, match="eos_token_id"):
        open_checkpoint(model_dir)


def test_recommended_sampling_holds_what_the_file_gives(model_dir: Path) -> None:
    edit(model_dir / "generation_config.json", temperature=0.7, top_k=20, do_sample=False, max_length=99)
    assert open_checkpoint(model_dir).default_sampling == {"temperature": 0.7, "top_k": 20}


def test_dummy_needs_no_weights_and_no_tokenizer(model_dir: Path) -> None:
    for path in model_dir.iterdir():
        if path.name != "config.json":
            path.unlink()
    checkpoint = open_checkpoint(model_dir, load_format="dummy", skip_tokenizer=True)
    assert checkpoint.weights is None and checkpoint.config.vocab_size == 320


def test_unknown_architecture_is_named_with_those_that_run(model_dir: Path) -> None:
    edit(model_dir / "config.json", model_type="deepseek_v9")
    with pytest.raises(UnsupportedCheckpoint, match=r"deepseek_v9.*Supported: llama, mistral, qwen2, qwen3"):
        open_checkpoint(model_dir)


def test_text_model_in_a_wrapper_is_refused(model_dir: Path) -> None:
    edit(model_dir / "config.json", model_type="llava", text_config={"model_type": "llama"})
    with pytest.raises(UnsupportedCheckpoint, match="multimodal wrapper"):
        open_checkpoint(model_dir)


def test_quantised_safetensors_are_refused_by_method(model_dir: Path) -> None:
    edit(model_dir / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(UnsupportedCheckpoint, match="'awq'"):
        open_checkpoint(model_dir)


def test_code_in_a_checkpoint_never_runs(model_dir: Path) -> None:
    marker = model_dir / "ran"
    (model_dir / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()", encoding="utf-8")
    edit(model_dir / "config.json", auto_map={"AutoConfig": "evil.Config"})
    edit(model_dir / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    assert open_checkpoint(model_dir).config.model_type == "llama"
    assert not marker.exists()


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b'{"a": ', b"[1]", b"\xff\xfe"])
def test_broken_json_names_the_file(file: str, content: bytes, model_dir: Path) -> None:
    (model_dir / file).write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(model_dir)
    assert str(model_dir / file) in str(caught.value)


@pytest.mark.parametrize("text", ['{"added_tokens": [1]}', '{"model": {"vocab": [3]}}', '{"added_tokens": [{}]}'])
def test_json_that_is_no_tokenizer_is_named(text: str, model_dir: Path) -> None:
    (model_dir / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(DamagedCheckpoint, match=r"tokenizer\.json is JSON, but no tokenizer"):
        open_checkpoint(model_dir)


def test_config_that_transformers_refuses_is_named(model_dir: Path) -> None:
    edit(model_dir / "config.json", hidden_size="wide")
    with pytest.raises(DamagedCheckpoint, match=r"config\.json.*hidden_size"):
        open_checkpoint(model_dir)


def test_directory_without_config_lists_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ModelNotFound, match=r"config\.json.*readme\.txt"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        "no/such/path here",
        "D:models\\x",
        "\\\\server\\share\\модели",
        "x" * 300,
        "nul\0byte",
        "missing.gguf",
        "plain",
        "",
    ],
)
def test_a_path_that_does_not_exist_is_shown_unharmed(model: str, tmp_path: Path, monkeypatch: Any) -> None:
    """R43: paths of Windows are tried here as names of nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(model)
    assert model in str(caught.value) or model == "" or "\0" in model


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"12345678{}")
    with pytest.raises(UnsupportedCheckpoint, match="give the directory"):
        open_checkpoint(tmp_path / "model.safetensors")


def test_unknown_load_format(model_dir: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="'fast'"):
        open_checkpoint(model_dir, load_format="fast")  # type: ignore[arg-type]

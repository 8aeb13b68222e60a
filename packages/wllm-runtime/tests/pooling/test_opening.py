"""Which engine a model gets, and models and settings that are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wllm_runtime import ConfigError, EngineConfig, UnsupportedModel, WeightsError
from wllm_runtime.checkpoint import CheckpointError, DamagedCheckpoint, UnsupportedCheckpoint, task_of
from wllm_runtime.engine import ModelEngine
from wllm_runtime.open_engine import open_engine
from wllm_runtime.pooling.engine import PoolingEngine
from wllm_runtime.testing_poolers import change_config, save_modules, save_pooler, save_tokenizer

OpenPooler = Callable[..., PoolingEngine]


@pytest.mark.parametrize(
    ("architectures", "modules", "task"),
    [
        (["LlamaForCausalLM"], False, "generate"),
        (["Qwen3ForCausalLM"], True, "embed"),
        (["Qwen3Model"], False, "embed"),
        (["BertModel"], False, "embed"),
        (["XLMRobertaForMaskedLM"], False, "embed"),
        (["GPT2LMHeadModel"], False, "generate"),
        (["BertForSequenceClassification"], False, "score"),
        (["Qwen3ForSequenceClassification"], True, "score"),
        (["T5ForConditionalGeneration"], False, "generate"),
        (None, False, "generate"),
        (None, True, "embed"),
    ],
)
def test_the_files_tell_the_task(tmp_path: Path, architectures: list[str] | None, modules: bool, task: str) -> None:
    config = {"model_type": "any", "architectures": architectures}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if modules:
        save_modules(tmp_path)
    assert task_of(tmp_path).task == task


def test_a_model_that_writes_text_gets_the_other_engine(tmp_path: Path) -> None:
    save_pooler(tmp_path, "llama", "AutoModelForCausalLM", bos_token_id=1, eos_token_id=2)
    engine = open_engine(EngineConfig(model=str(tmp_path), device="cpu", skip_tokenizer_init=True, num_kv_blocks=8))
    assert isinstance(engine, ModelEngine)
    assert engine.model_info.task == "generate"
    engine.close()


def test_the_context_is_what_the_authors_and_the_positions_allow(tmp_path: Path, open_pooler: OpenPooler) -> None:
    plain, roberta, short = (tmp_path / name for name in ("plain", "roberta", "short"))
    save_pooler(plain, "bert")
    save_pooler(roberta, "roberta")
    save_pooler(short, "bert")
    save_modules(short, max_seq_length=16)

    def context(folder: Path, **settings: Any) -> int:
        return open_pooler(folder, skip_tokenizer_init=True, **settings).model_info.max_model_len

    assert context(plain) == 40
    assert context(roberta) == 38, "positions begin behind the padding's"
    assert context(short) == 16
    assert context(short, max_model_len=30) == 30
    with pytest.raises(ConfigError, match="max_model_len=41 is more than the 40 positions"):
        context(plain, max_model_len=41)


def test_lower_case_is_the_tokenizers_work(tmp_path: Path, open_pooler: OpenPooler) -> None:
    save_pooler(tmp_path, "bert")
    save_tokenizer(tmp_path)
    save_modules(tmp_path, do_lower_case=True)
    text = open_pooler(tmp_path).model_info.tokenizer_json
    assert text is not None
    assert json.loads(text)["normalizer"]["normalizers"] == [{"type": "Lowercase"}]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"num_kv_blocks": 9}, "num_kv_blocks=9"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype='int8'"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching=False"),
        ({"override_generation_config": {"temperature": 0.5}}, "override_generation_config"),
    ],
)
def test_settings_without_a_meaning_are_refused(
    tmp_path: Path, open_pooler: OpenPooler, settings: dict[str, Any], name: str
) -> None:
    save_pooler(tmp_path, "bert")
    with pytest.raises(ConfigError, match=f"{name}.*means nothing to a model of the task 'embed'"):
        open_pooler(tmp_path, skip_tokenizer_init=True, **settings)


def _two_modes(folder: Path) -> None:
    path = folder / "1_Pooling" / "config.json"
    both = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    path.write_text(json.dumps(both), encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda folder: save_modules(folder, "weightedmean_tokens"), UnsupportedCheckpoint, "pools by weightedmean"),
        (lambda folder: save_modules(folder, None), UnsupportedCheckpoint, "pools by nothing"),
        (lambda folder: (save_modules(folder), _two_modes(folder)), UnsupportedCheckpoint, "cls and mean"),
        (lambda folder: save_modules(folder, extra=["CNN"]), UnsupportedCheckpoint, "a module 'CNN'"),
        (lambda folder: save_modules(folder, extra=["../up"]), DamagedCheckpoint, "no folder's name"),
        (
            lambda folder: (folder / "modules.json").write_text("{}", encoding="utf-8"),
            DamagedCheckpoint,
            "no list of modules",
        ),
        (
            lambda folder: (save_modules(folder), (folder / "1_Pooling" / "config.json").unlink()),
            DamagedCheckpoint,
            "says how to pool",
        ),
        (
            lambda folder: change_config(folder, auto_map={"AutoModel": "modeling.Other"}),
            UnsupportedCheckpoint,
            "code that comes with the model",
        ),
        (
            lambda folder: change_config(folder, quantization_config={"quant_method": "gptq"}),
            UnsupportedCheckpoint,
            "quantised",
        ),
        (lambda folder: change_config(folder, model_type="nonsense"), UnsupportedModel, "'nonsense'"),
        (lambda folder: change_config(folder, model_type="t5"), UnsupportedModel, "encoder and a decoder"),
        (lambda folder: change_config(folder, num_hidden_layers=3), WeightsError, "lacks 16 tensors"),
        (lambda folder: change_config(folder, hidden_size=64), WeightsError, "do not fit"),
        (lambda folder: (folder / "model.safetensors").unlink(), CheckpointError, "safetensors"),
    ],
)
def test_models_that_cannot_be_run_are_refused(
    tmp_path: Path,
    open_pooler: OpenPooler,
    spoil: Callable[[Path], object],
    kind: type[Exception],
    words: str,
) -> None:
    save_pooler(tmp_path, "bert")
    spoil(tmp_path)
    with pytest.raises(kind, match=words):
        open_pooler(tmp_path, skip_tokenizer_init=True)


def test_no_scores_without_a_head(tmp_path: Path, open_pooler: OpenPooler) -> None:
    save_pooler(tmp_path, "bert")
    change_config(tmp_path, id2label={"0": "LABEL_0"})
    with pytest.raises(WeightsError, match=r"lacks 2 tensors.*classifier\.bias.*--task"):
        open_pooler(tmp_path, skip_tokenizer_init=True, task="score")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_labels": 3}, "a classifier of 3 labels"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.activation.Softsign"}, "Softsign"),
    ],
)
def test_other_classifiers_are_refused(
    tmp_path: Path, open_pooler: OpenPooler, options: dict[str, Any], words: str
) -> None:
    save_pooler(tmp_path, "bert", "AutoModelForSequenceClassification", **options)
    with pytest.raises(UnsupportedModel, match=words):
        open_pooler(tmp_path, skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("vit", {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}),
        ("clip", {"projection_dim": 8}),
    ],
)
def test_models_of_pictures_are_refused(
    tmp_path: Path, open_pooler: OpenPooler, model_type: str, options: dict[str, Any]
) -> None:
    config = {"model_type": model_type, "architectures": [f"{model_type}Model"], **options}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UnsupportedModel, match=f"model_type '{model_type}'"):
        open_pooler(tmp_path, skip_tokenizer_init=True, load_format="dummy")


def test_a_file_is_no_pooling_model(tmp_path: Path, open_pooler: OpenPooler) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedCheckpoint, match="Hugging Face format only"):
        open_pooler(path, task="embed")

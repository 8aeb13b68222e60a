"""Tokenizer files of a directory: passed on as data, with the same meaning as in transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from wllm_runtime.checkpoint import ModelNotFound, UnsupportedCheckpoint
from wllm_runtime.checkpoint.tokenizer_files import read_tokenizer_files

TEXT = "What is the capital of France? 2024 🫠"


@pytest.fixture
def folder(tmp_path: Path, byte_level_tokenizer: Tokenizer) -> Path:
    byte_level_tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def configure(folder: Path, **settings: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def test_the_text_is_passed_on_as_it_is(folder: Path) -> None:
    assert read_tokenizer_files(folder).tokenizer_json == (folder / "tokenizer.json").read_text(encoding="utf-8")


def test_truncation_and_padding_are_taken_out(folder: Path, byte_level_tokenizer: Tokenizer) -> None:
    byte_level_tokenizer.enable_truncation(3)
    byte_level_tokenizer.enable_padding(length=40)
    byte_level_tokenizer.save(str(folder / "tokenizer.json"))
    text = read_tokenizer_files(folder).tokenizer_json
    assert text is not None
    byte_level_tokenizer.no_truncation()
    byte_level_tokenizer.no_padding()
    assert Tokenizer.from_str(text).encode(TEXT).ids == byte_level_tokenizer.encode(TEXT).ids


@pytest.mark.parametrize("in_template", [True, False])
@pytest.mark.parametrize("in_config", [True, False, None])
def test_begin_token_as_in_transformers(
    in_template: bool, in_config: bool | None, folder: Path, byte_level_tokenizer: Tokenizer
) -> None:
    if in_template:
        byte_level_tokenizer.post_processor = TemplateProcessing(
            "<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
        byte_level_tokenizer.save(str(folder / "tokenizer.json"))
    settings = {} if in_config is None else {"add_bos_token": in_config}
    configure(folder, bos_token="<|im_start|>", tokenizer_class="PreTrainedTokenizerFast", **settings)
    text = read_tokenizer_files(folder).tokenizer_json
    assert text is not None
    ids = Tokenizer.from_str(text).encode(TEXT).ids
    assert ids == AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    assert (ids[0] == 1) == in_template


def test_special_tokens_in_both_forms(folder: Path) -> None:
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<|im_start|>", "lstrip": False}, "pad_token": "<|im_end|>"}),
        encoding="utf-8",
    )
    configure(folder, eos_token={"__type": "AddedToken", "content": "<|im_end|>"}, unk_token=None)
    files = read_tokenizer_files(folder)
    assert files.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
    }
    assert files.token_ids == {"bos_token": 1, "eos_token": 2, "pad_token": 2}


def test_template_file_wins_over_the_config(folder: Path) -> None:
    configure(folder, chat_template="from the config")
    assert read_tokenizer_files(folder).chat_template == "from the config"
    (folder / "chat_template.jinja").write_text("from the file ü", encoding="utf-8")
    assert read_tokenizer_files(folder).chat_template == "from the file ü"


def test_named_templates_give_the_default(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tools = {"name": "tool_use", "template": "tools"}
    configure(folder, chat_template=[tools, {"name": "default", "template": "plain"}])
    assert read_tokenizer_files(folder).chat_template == "plain"
    configure(folder, chat_template=[tools])
    with caplog.at_level(logging.WARNING):
        assert read_tokenizer_files(folder).chat_template is None
    assert "tool_use" in caplog.text


def test_no_template(folder: Path) -> None:
    assert read_tokenizer_files(folder).chat_template is None


def test_added_tokens_that_tokenizer_json_lacks_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    configure(folder, added_tokens_decoder={"1": {"content": "<|im_start|>"}, "400": {"content": "<|new|>"}})
    with caplog.at_level(logging.WARNING):
        read_tokenizer_files(folder)
    assert "<|new|>" in caplog.text and "im_start" not in caplog.text


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"neither tokenizer\.json nor tokenizer\.model"):
        read_tokenizer_files(tmp_path)
    assert read_tokenizer_files(tmp_path, skip_tokenizer=True).tokenizer_json is None


def test_a_tokenizer_model_is_converted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|im_start|>")
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: converted)
    files = read_tokenizer_files(folder)
    assert files.tokenizer_json is not None
    assert Tokenizer.from_str(files.tokenizer_json).encode(TEXT).ids == converted(TEXT).input_ids
    assert files.special_tokens == {"bos_token": "<|im_start|>"} and files.token_ids == {"bos_token": 1}


def test_a_sentencepiece_file_that_cannot_be_converted(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not a protobuf")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer\.model.*Fetch the model's tokenizer\.json"):
        read_tokenizer_files(tmp_path)

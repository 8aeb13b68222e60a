"""All stores together: what is there, what has a name, and what has one like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from wllm_runtime.stores.folders import models_below
from wllm_runtime.stores.hub_cache import hub_cache_folder, hub_models
from wllm_runtime.stores.lm_studio import lm_studio_folders, lm_studio_models
from wllm_runtime.stores.ollama import ollama_folders, ollama_models
from wllm_runtime.stores.stored_model import OnTrouble, StoredModel


def places(folders: Sequence[Path] = ()) -> list[Path]:
    """Every folder that `stored_models` looks into, whether it exists or not."""
    return [hub_cache_folder(), *ollama_folders(), *lm_studio_folders(), *folders]


def stored_models(on_trouble: OnTrouble, folders: Sequence[Path] = ()) -> Iterator[StoredModel]:
    """The models of all stores, and of `folders`; one store that cannot be read hides no other."""
    # Before the hub's, whose client takes a second to import.
    yield from ollama_models(on_trouble)
    yield from lm_studio_models(on_trouble)
    for folder in folders:
        yield from models_below(folder, "folder", on_trouble)
    yield from hub_models(on_trouble)


def find(name: str, on_trouble: OnTrouble, folders: Sequence[Path] = ()) -> StoredModel | None:
    """The first model of that name, or None."""
    return next((model for model in stored_models(on_trouble, folders) if model.is_called(name)), None)


def near(name: str, on_trouble: OnTrouble, folders: Sequence[Path] = ()) -> list[str]:
    """Names of at most three models here that `name` may mean: those that hold it, then those spelled alike."""
    names = sorted({model.name for model in stored_models(on_trouble, folders)})
    wanted = _letters(name.partition(":")[0])
    holding = [each for each in names if wanted and wanted in _letters(each)]
    alike = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return list(dict.fromkeys([*holding, *alike]))[:3]


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())

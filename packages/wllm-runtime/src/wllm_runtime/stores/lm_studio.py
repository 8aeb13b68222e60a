"""LM Studio's folders of models, in which publisher/repository/file lie as on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from wllm_runtime.stores.folders import models_below
from wllm_runtime.stores.stored_model import OnTrouble, StoredModel


def lm_studio_folders() -> list[Path]:
    """Where LM Studio keeps models: the folder that its settings name, today's default, and that of before 0.3."""
    home = Path.home()
    folders = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    try:
        settings = json.loads((home / ".lmstudio" / "settings.json").read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        settings = None
    chosen = settings.get("downloadsFolder") if isinstance(settings, dict) else None
    if isinstance(chosen, str) and chosen and Path(chosen) not in folders:
        folders.insert(0, Path(chosen))
    return folders


def lm_studio_models(on_trouble: OnTrouble) -> Iterator[StoredModel]:
    """The models in LM Studio's folders."""
    for folder in lm_studio_folders():
        yield from models_below(folder, "lm-studio", on_trouble)

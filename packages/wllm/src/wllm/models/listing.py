"""The models of this disk as a table for people and as one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from wllm.console import size_text
from wllm_runtime.stores import StoredModel
from wllm_runtime.stores.stored_model import Source

_OWNERS: Mapping[Source, str] = {
    "hub": "hub cache",
    "ollama": "Ollama",
    "lm-studio": "LM Studio",
    "folder": "your folder",
}


def table(models: Sequence[StoredModel]) -> str:
    """A head and a line for each model: name, size, format, where from, and what is unusual."""
    rows = [("NAME", "SIZE", "FORMAT", "FROM")]
    rows += [(model.name, size_text(model.num_bytes), model.format, _from(model)) for model in models]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {size:>{widths[1]}}  {format_:<{widths[2]}}  {owner}"
        for name, size, format_, owner in rows
    )


def json_listing(models: Sequence[StoredModel]) -> str:
    """An object with all models; ASCII, whatever the console."""
    rows = [
        {
            "name": model.name,
            "path": str(model.path),
            "size": model.num_bytes,
            "format": model.format,
            "source": model.source,
            "downloaded_by_wllm": model.own,
            "note": model.note,
        }
        for model in models
    ]
    return json.dumps({"models": rows}, indent=2)


def _from(model: StoredModel) -> str:
    owner = "hub, by wLLM" if model.own else _OWNERS[model.source]
    return f"{owner} ({model.note})" if model.note else owner

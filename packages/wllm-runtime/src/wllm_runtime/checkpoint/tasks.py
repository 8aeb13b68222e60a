"""What a model directory is for: text, vectors, or scores of pairs.

Goes by the files alone; `--task` overrides it. Opens no weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from wllm_runtime.checkpoint.jsonfile import read_object
from wllm_runtime.checkpoint.sentence_modules import MODULES_FILE
from wllm_sched import Task


class FoundTask(NamedTuple):
    """A task and what told it."""

    task: Task
    reason: str


def task_of(path: Path) -> FoundTask:
    """The task of a model directory or file; what is no embedder and no classifier generates text."""
    if not path.is_dir():
        return FoundTask("generate", "a GGUF file")
    architectures = read_object(path / "config.json").get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    for name in names:
        if name.endswith("ForSequenceClassification"):
            return FoundTask("score", f"the architecture is {name}")
    if (path / MODULES_FILE).is_file():
        return FoundTask("embed", f"it has a {MODULES_FILE}")
    for name in names:
        # Headless, or an encoder that was only trained to fill gaps: no text can come of it.
        if name.endswith(("Model", "ForMaskedLM")) and not name.endswith("LMHeadModel"):
            return FoundTask("embed", f"the architecture is {name}")
    return FoundTask("generate", "the architecture")

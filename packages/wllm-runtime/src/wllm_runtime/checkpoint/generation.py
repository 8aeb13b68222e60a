"""generation_config.json: where an answer ends, and how its author would sample.

Follows vLLM: the settings that the file gives are used as they stand; `do_sample` is not looked at, so a file with
`do_sample: false` and no temperature does not become greedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from wllm_runtime.checkpoint.errors import DamagedCheckpoint
from wllm_runtime.checkpoint.jsonfile import read_object

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def read_generation_config(directory: Path) -> dict[str, object]:
    """The file's object, `{}` where there is none."""
    return read_object(directory / "generation_config.json")


def default_sampling(generation: Mapping[str, object]) -> dict[str, float]:
    """The recommended sampling settings that the file holds, by SamplingParams field name."""
    return {
        name: value
        for name in _SAMPLING
        if isinstance(value := generation.get(name), (int, float)) and not isinstance(value, bool)
    }


def merge_token_ids(*sources: object) -> tuple[int, ...]:
    """The union of ids (each an int, a list of ints or None), first seen first; raises `DamagedCheckpoint` else."""
    merged: dict[int, None] = {}
    for source in sources:
        for value in _as_ids(source):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise DamagedCheckpoint(f"{source!r} is no end-of-text token id. Correct eos_token_id in the config.")
            merged[value] = None
    return tuple(merged)


def _as_ids(source: object) -> Iterable[object]:
    if source is None:
        return ()
    return source if isinstance(source, (list, tuple)) else (source,)

"""Which safetensors files of a directory make up the model.

Looks at names and the index only, opens no weights. Follows transformers: model.safetensors, else the shards that
model.safetensors.index.json lists; beyond that, a single safetensors file of any name, or a complete numbered set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, ModelNotFound, UnsupportedCheckpoint
from wllm_runtime.checkpoint.jsonfile import read_object

_INDEX = "model.safetensors.index.json"
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<part>\d+)-of-(?P<count>\d+)\.safetensors")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Shards:
    """Files to read, in order, and where the index (if there is one) places each tensor."""

    files: tuple[Path, ...]
    placement: dict[str, Path] = field(default_factory=dict)


def find_shards(directory: Path) -> Shards:
    """The weight files of `directory`; raises a `CheckpointError` that says what is there instead."""
    single = directory / "model.safetensors"
    if single.is_file():
        return Shards((single,))
    if (directory / _INDEX).is_file():
        return _from_index(directory)
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1 and not _NUMBERED.fullmatch(files[0].name):
        return Shards((files[0],))
    if files:
        return Shards(_numbered_set(directory, files))
    pickled = sorted(path.name for pattern in _PICKLED for path in directory.glob(pattern))
    if pickled:
        raise UnsupportedCheckpoint(
            f"{directory} holds its weights only as pickled files ({', '.join(pickled[:4])}), which can run code when "
            "they are opened, so wLLM does not read them. Use a safetensors or GGUF version of the model."
        )
    raise ModelNotFound(
        f"{directory} holds no weights (no *.safetensors file). Incomplete download? Fetch the model again."
    )


def _from_index(directory: Path) -> Shards:
    index = directory / _INDEX
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DamagedCheckpoint(f"{index} has no 'weight_map'. Incomplete download? Fetch it again.")
    placement: dict[str, Path] = {}
    for name, file in weight_map.items():
        # A plain name only: an index from elsewhere must not reach outside its directory.
        if not isinstance(file, str) or not file.endswith(".safetensors") or re.search(r"[/\\:]", file):
            raise DamagedCheckpoint(f"{index} places {name!r} in {file!r}, which is no name of a safetensors file.")
        placement[name] = directory / file
    return Shards(tuple(sorted(set(placement.values()))), placement)


def _numbered_set(directory: Path, files: list[Path]) -> tuple[Path, ...]:
    matches = [match for file in files if (match := _NUMBERED.fullmatch(file.name))]
    sets = {(match["stem"], match["count"]) for match in matches}
    if len(matches) != len(files) or len(sets) != 1:
        names = ", ".join(file.name for file in files[:6])
        raise DamagedCheckpoint(
            f"{directory} holds several safetensors files ({names}) and no {_INDEX} to say which make up the model. "
            "Fetch the index."
        )
    count = int(matches[0]["count"])
    present = {int(match["part"]) for match in matches}
    missing = sorted(set(range(1, count + 1)) - present)
    if missing:
        raise DamagedCheckpoint(
            f"{directory} lacks part {missing[0]} of {count} of its weights (it holds {files[0].name}). "
            "Incomplete download? Fetch it again."
        )
    return tuple(files)

"""The files in which sentence-transformers keeps what comes after the transformer: pooling, dense layers, unit length.

Reads JSON only; where there is no modules.json, all is left open (`pooling` None). A module that wLLM does not know is
refused by name: without it the vectors would be wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.jsonfile import read_object, read_text

MODULES_FILE = "modules.json"
PoolingMode = Literal["cls", "mean", "max", "last"]
_MODES: Mapping[str, PoolingMode] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_FLAG = re.compile(r"pooling_mode_(\w+?)(_tokens?)?")
_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """What the files say: the folder of the transformer, and what follows it.

    `dense` are folders of linear layers. `longest` is the most tokens that the authors feed the model, None for no
    limit of theirs. `prompts` are the names of texts to put before an input.
    """

    transformer: Path
    pooling: PoolingMode | None = None
    dense: tuple[Path, ...] = ()
    normalize: bool = False
    longest: int | None = None
    lower_case: bool = False
    prompts: tuple[str, ...] = ()


def read_modules(directory: Path) -> SentenceModules:
    """The modules of a model directory; raises `DamagedCheckpoint` or `UnsupportedCheckpoint`."""
    path = directory / MODULES_FILE
    if not path.is_file():
        return SentenceModules(directory)
    transformer, pooling, dense, normalize = directory, None, [], False
    for kind, folder in _listed(path):
        match kind:
            case "Transformer":
                transformer = directory / folder
            case "Pooling":
                pooling = _mode(directory / folder / "config.json")
            case "Dense":
                dense.append(directory / folder)
            case "Normalize":
                normalize = True
            case _:
                raise UnsupportedCheckpoint(
                    f"{path} has a module {kind!r}, which wLLM does not run. Supported: Transformer, Pooling, Dense, "
                    "Normalize."
                )
    settings = _transformer_settings(transformer)
    longest = settings.get("max_seq_length")
    prompts = read_object(directory / "config_sentence_transformers.json").get("prompts")
    return SentenceModules(
        transformer,
        pooling,
        tuple(dense),
        normalize,
        longest if isinstance(longest, int) and longest > 0 else None,
        settings.get("do_lower_case") is True,
        tuple(name for name, text in prompts.items() if text) if isinstance(prompts, dict) else (),
    )


def module_folders(directory: Path) -> list[str]:
    """The folders below `directory` in which modules keep their files."""
    path = directory / MODULES_FILE
    return [folder for _, folder in _listed(path) if folder] if path.is_file() else []


def _listed(path: Path) -> list[tuple[str, str]]:
    # (kind, folder) of each module, in their order; a folder comes from the file, so it must not lead elsewhere.
    try:
        entries = json.loads(read_text(path))
        if not isinstance(entries, list):
            raise TypeError(f"a {type(entries).__name__}")
        listed = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpoint(
            f"{path} is no list of modules with 'type' and 'path' ({type(error).__name__}: {error}). Fetch it again."
        ) from error
    for kind, folder in listed:
        if folder and not _FOLDER.fullmatch(folder):
            raise DamagedCheckpoint(f"{path} puts the module {kind} into {folder!r}, which is no folder's name.")
    return listed


def _mode(path: Path) -> PoolingMode:
    if not path.is_file():
        raise DamagedCheckpoint(f"There is no {path}, which says how to pool. Fetch the whole model again.")
    settings = read_object(path)
    named = settings.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named if isinstance(named, list) else None
    if modes is None:
        flags = ((_FLAG.fullmatch(name), value) for name, value in settings.items())
        modes = [found[1] for found, value in flags if found is not None and value is True]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedCheckpoint(
            f"{path} pools by {' and '.join(map(str, modes)) or 'nothing'}, which wLLM does not do. Supported is one "
            f"of {', '.join(_MODES)}."
        )
    return _MODES[modes[0]]


def _transformer_settings(folder: Path) -> Mapping[str, object]:
    # sentence_bert_config.json in nearly all; older models have their family's name in it.
    files = sorted(folder.glob("sentence_*_config.json"))
    return read_object(files[0]) if files else {}

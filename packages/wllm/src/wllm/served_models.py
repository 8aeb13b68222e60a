"""Which models `wllm serve` has, and how each is set: from the command line, or from a file with several.

The file is TOML. Each table is a model: its name is what clients call the model, its keys are flags without the dashes.
What a table leaves out is as on the command line.
"""

from __future__ import annotations

import argparse
import copy
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from wllm.default_model import default_model
from wllm.flags import add_engine_flags, engine_settings
from wllm.server_flags import add_server_flags
from wllm_api.settings import Parsers
from wllm_runtime import ConfigError, EngineConfig

# Those that concern one model, beside the engine's.
_OF_A_MODEL = frozenset({"keep-alive", "tool-parser", "reasoning-parser"})
_BACKSLASHES = "Write a path with backslashes in single quotes, such as 'D:\\models\\small'."


class ModelsError(ValueError):
    """The models that are to be served cannot be: an unusable file, or names that do not fit."""


@dataclass(frozen=True, slots=True)
class ModelToServe:
    """A model with the settings of its engine (fields of `EngineConfig`), and the reason why it was chosen."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    reason: str
    keep_alive_s: float | None
    parsers: Parsers


def models_to_serve(args: argparse.Namespace) -> list[ModelToServe]:
    """The models that parsed flags of `wllm serve` ask for; raises `ModelsError`."""
    if args.models_file is not None:
        return _models_of_file(args)
    names = tuple(args.served_model_name)
    if names and len(args.model) > 1:
        raise ModelsError(
            f"--served-model-name {names[0]} names one model, and there are {len(args.model)}. Give each its names in "
            "a --models-file."
        )
    if not args.model:
        chosen = default_model()
        settings = {"model": chosen.model, **engine_settings(args)}
        settings["override_generation_config"] = args.override_generation_config or chosen.sampling
        return [_model(args, settings, names, chosen.reason)]
    return [_model(args, {"model": model, **engine_settings(args)}, names, "as given") for model in args.model]


def served_name(model: str) -> str:
    """The name of a model in the API: a hub id as it is, of a path its last part without the ending."""
    path = Path(model)
    if path.suffix.lower() == ".gguf":
        return path.stem
    return path.resolve().name if path.exists() else model


def _model(args: argparse.Namespace, settings: Mapping[str, Any], names: tuple[str, ...], reason: str) -> ModelToServe:
    parsers = Parsers(tools=args.tool_parser, reasoning=args.reasoning_parser)
    names = names or (served_name(settings["model"]),)
    if not all(names):
        raise ModelsError(
            f"The model {settings['model']} ({reason}) is called '', which no request can ask for. Name it."
        )
    return ModelToServe(names, settings, reason, args.keep_alive, parsers)


def _models_of_file(args: argparse.Namespace) -> list[ModelToServe]:
    path: Path = args.models_file
    if args.model or args.served_model_name:
        given = args.model[0] if args.model else f"--served-model-name {args.served_model_name[0]}"
        raise ModelsError(f"{given} is given beside --models-file {path}, which names all models. Leave one out.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # programs on Windows begin UTF-8 with a mark
    except OSError as error:
        raise ModelsError(f"The --models-file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ModelsError(f"The --models-file {path} is not UTF-8: {error}. Save it as UTF-8.") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = f" {_BACKSLASHES}" if "\\" in text else ""
        raise ModelsError(f"The --models-file {path} is not TOML: {error}.{hint}") from None
    if not tables:
        raise ModelsError(f'The --models-file {path} has no models. A model is a table: [name], then model = "...".')
    return [_model_of_table(name, table, args) for name, table in tables.items()]


def _model_of_table(name: str, table: object, args: argparse.Namespace) -> ModelToServe:
    where = f"[{name}] in {args.models_file}"
    if not isinstance(table, dict):
        raise ModelsError(f"{name} in {args.models_file} is not a table. A model begins with a line [{name}].")
    flags = dict(table)
    model, more = flags.pop("model", None), flags.pop("names", [])
    if (meant := _dotted(name, table)) is not None:
        raise ModelsError(f'{where} holds another model. In TOML a name with a dot needs quotes: ["{meant}"].')
    if not isinstance(model, str) or not model:
        raise ModelsError(f'{where} has no model. Add a line such as model = "Qwen/Qwen2.5-0.5B-Instruct".')
    if min(model) < " ":  # "D:\new" has the end of a line in it
        raise ModelsError(f"model of {where} is {model!r}, with control characters. {_BACKSLASHES}")
    if not isinstance(more, list) or not all(isinstance(one, str) and one for one in more):
        raise ModelsError(f'names of {where} is not a list of names. Write names = ["one", "other"].')
    own = copy.copy(args)
    parser = _TableParser(where)
    for key, value in flags.items():
        parser.take(key, value, own)
    settings = {"model": model, **engine_settings(own)}
    try:
        EngineConfig(**settings)  # here, where the table is known
    except ConfigError as error:
        raise ModelsError(f"{where}: {error}") from None
    return _model(own, settings, (name, *more), f"from {args.models_file}")


def _dotted(name: str, table: Mapping[str, Any]) -> str | None:
    # The name of the first model within a table, which a dot in an unquoted name makes one.
    for key, inner in table.items():
        if isinstance(inner, dict):
            meant = f"{name}.{key}"
            found = meant if "model" in inner else _dotted(meant, inner)
            if found is not None:
                return found
    return None


class _TableParser(argparse.ArgumentParser):
    # The parser of the command line, so that a value means the same in both places.

    def __init__(self, where: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._where = where
        add_engine_flags(self, several=True)
        of_engine = set(self._option_string_actions)
        add_server_flags(self)
        self._known = {
            flag.removeprefix("--"): action
            for flag, action in self._option_string_actions.items()
            if not flag.startswith("--no-") and (flag in of_engine or flag.removeprefix("--") in _OF_A_MODEL)
        }

    def take(self, key: str, value: object, into: argparse.Namespace) -> None:
        """Set what one line of the table says."""
        action = self._known.get(key)
        if action is None:
            raise ModelsError(
                f"{key} of {self._where} is not a setting of a model. There are: model, names, "
                f"{', '.join(sorted(self._known))}."
            )
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise ModelsError(f"{key} of {self._where} is {json.dumps(value, default=str)}; use true or false.")
            setattr(into, action.dest, value)
            return
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        # The value is one word with its flag: it may begin with a dash.
        self.parse_args([f"--{key}={text}"], into)

    def error(self, message: str) -> NoReturn:
        """Of the file, not of the command line."""
        raise ModelsError(f"{self._where}: {message}")

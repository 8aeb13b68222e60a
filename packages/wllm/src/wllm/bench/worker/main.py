"""The worker's side of the conversation: a JSON object a line, answered by one.

`{"do": "start", "engine", "model", "options"}`, `{"do": "generate", "prompts", "output_lengths"}`,
`{"do": "bandwidth", "device"}`, `{"do": "close"}`. An answer holds "error" (with "kind": absent, unsupported or failed)
or the result. End of input ends the process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from .interface import Unsupported

if TYPE_CHECKING:
    from .interface import TimedEngine

_ENGINES = {
    "wllm": ("wllm_engine", "WllmEngine"),
    "vllm": ("vllm_engine", "VllmEngine"),
    "transformers": ("transformers_engine", "TransformersEngine"),
    "llama.cpp": ("llama_cpp_engine", "LlamaCppEngine"),
}


class Absent(Exception):
    """The engine is not installed in this Python."""


class Conversation:
    """Does what the parent asks."""

    def __init__(self) -> None:
        self._engine: TimedEngine | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request's answer; never raises, except to end the process."""
        try:
            return self._do(request)
        except Absent as error:
            return {"error": str(error), "kind": "absent"}
        except Unsupported as error:
            return {"error": str(error), "kind": "unsupported"}
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}", "kind": "failed"}

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "start":
            module, name = _ENGINES[request["engine"]]
            kind: Any = getattr(importlib.import_module(f".{module}", __package__), name)
            if importlib.util.find_spec(kind.PACKAGE) is None:
                raise Absent("not installed")
            self._engine = kind(request["model"], request["options"])
            return {"version": _version(kind.PACKAGE)}
        if request["do"] == "bandwidth":
            from .bandwidth import copy_bandwidth

            return {"bytes_per_second": copy_bandwidth(request["device"])}
        if request["do"] == "close":
            return {"counted": {} if self._engine is None else dict(self._engine.close())}
        assert request["do"] == "generate" and self._engine is not None, request["do"]
        return {"seconds": self._engine.generate(request["prompts"], request["output_lengths"])}


def _version(package: str) -> str:
    version = getattr(sys.modules[package], "__version__", None)
    if version is None:
        try:
            version = importlib.metadata.version(package.replace("_", "-"))
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            return "not installed as a package"
    return str(version)


def main() -> None:
    """Answer until the input ends. What an engine prints goes to standard error: the output is the conversation."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    conversation = Conversation()
    for line in sys.stdin:
        request = json.loads(line)
        channel.write(json.dumps(conversation.answer(request)) + "\n")
        channel.flush()
        if request["do"] == "close":
            break

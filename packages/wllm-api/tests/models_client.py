"""A client of a server with several models, for tests."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx

from wllm_api.engine import EngineProcess
from wllm_api.serving import Serving


class ModelsClient(httpx.Client):
    """A client of the server, which knows its engines by their models' names."""

    engines: dict[str, EngineProcess]
    serving: Serving

    def complete(self, name: str, timeout_s: float = 30.0, **fields: Any) -> httpx.Response:
        asked = {"model": name, "prompt": "Hi", "max_tokens": 3, **fields}
        return self.post("/v1/completions", json=asked, timeout=timeout_s)

    def loaded(self) -> str:
        return "".join(name for name, engine in self.engines.items() if engine.pid is not None)


StartModels = Callable[..., AbstractContextManager[ModelsClient]]

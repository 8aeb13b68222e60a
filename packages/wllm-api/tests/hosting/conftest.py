from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from models_client import ModelsClient, StartModels

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.testing import running_server

FACTORY = "wllm_api.engine.scripted:create_scripted_engine"
POOLER = "wllm_api.engine.scripted_pooler:create_scripted_pooler"


@pytest.fixture
def serve_models() -> StartModels:
    """A function: serve models by name, with the options of their scripted engines; the server's own by keyword."""

    @contextmanager
    def start(
        models: dict[str, dict[str, Any]], *, keep_alive_s: float | None = None, ready: bool = True, **settings: Any
    ) -> Iterator[ModelsClient]:
        engines = {
            name: EngineProcess(POOLER if options.get("task") else FACTORY, options) for name, options in models.items()
        }
        hosted = [HostedModel(engine, [name], keep_alive_s=keep_alive_s) for name, engine in engines.items()]
        app = create_app(hosted, **settings)
        with running_server(app, ready=ready) as url, ModelsClient(base_url=url, timeout=30) as client:
            client.engines, client.serving = engines, app.state.serving
            yield client

    return start

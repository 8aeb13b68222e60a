"""One server with the scripted engine for all tests that do not break it, and a way to start others."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.settings import Access, Limits
from wllm_api.testing import running_server

FACTORY = "wllm_api.engine.scripted:create_scripted_engine"


class ServerClient(httpx.Client):
    """A client that also knows its server's parts, which live in this process."""

    engine: EngineProcess
    app: FastAPI


StartServer = Callable[..., AbstractContextManager[ServerClient]]


@contextmanager
def _started(
    access: Access | None = None, limits: Limits | None = None, *, ready: bool = True, **options: Any
) -> Iterator[ServerClient]:
    engine = EngineProcess(FACTORY, options)
    app = create_app(engine, served_model_names=["scripted", "org/other-name"], access=access, limits=limits)
    with running_server(app, ready=ready) as url, ServerClient(base_url=url, timeout=30) as client:
        client.engine, client.app = engine, app
        yield client


@pytest.fixture(scope="session")
def start_server() -> StartServer:
    """Start a server with these settings and options of the scripted engine: a context manager of its client."""
    return _started


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    """A client of the shared server."""
    with _started() as client:
        yield client

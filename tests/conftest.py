"""One server with the real small model for all tests that leave it as they found it, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import anthropic
    import httpx
    import ollama
    from server.running_server import RunningServer

# Tests without a server do not need what these import.


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from server.running_server import RunningServer

    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    """For what no package sends or shows."""
    import httpx

    with httpx.Client(base_url=server.url, timeout=300) as http:
        yield http


@pytest.fixture(scope="session")
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    """Anthropic's package."""
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300) as claude:
        yield claude


@pytest.fixture(scope="session")
def llama(server: RunningServer) -> Iterator[ollama.Client]:
    """Ollama's package."""
    import ollama

    with ollama.Client(host=server.url, timeout=300) as llama:
        yield llama

"""One server with the real small model for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server.running_server import RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running.wait_ready()

"""One server with the real small model for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from server.running_server import RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from server.running_server import RunningServer  # tests without a server do not need what it imports

    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running.wait_ready()

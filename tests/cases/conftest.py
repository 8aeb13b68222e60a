"""A server of a made-up, odd model, beside that of the real small one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cases.odd_model import CONSOLE, SMALL, save_odd_model
from server.running_server import RunningServer


@pytest.fixture(scope="session")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with spaces, Cyrillic, accented and Japanese letters in its path, that holds the odd model."""
    folder = tmp_path_factory.mktemp("cases") / "Загрузки Željko" / "my models 日本" / "odd"
    save_odd_model(folder)
    return folder


@pytest.fixture(scope="session")
def odd_server(odd_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("odd"), str(odd_folder), *SMALL, environment=CONSOLE) as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def odd(odd_server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=odd_server.url, timeout=120) as client:
        yield client

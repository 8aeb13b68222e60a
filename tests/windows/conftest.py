"""One server under Windows for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from windows.wine_server import WINE, WineServer


@pytest.fixture(autouse=True, scope="session")
def _wine() -> None:
    if not (WINE / "wine-run").is_file():
        pytest.skip("needs `nox -s windows`, which sets up Wine")


@pytest.fixture(scope="module")
def wine_server(_wine: None) -> Iterator[WineServer]:
    with WineServer("--port", "0", "--dtype", "float32") as running:
        yield running.wait_ready()

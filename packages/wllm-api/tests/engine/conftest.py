"""Engine processes for tests, stopped whatever happens."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from wllm_api.engine import EngineProcess

SCRIPTED = "wllm_api.engine.scripted:create_scripted_engine"


@pytest.fixture(autouse=True)
def stubs_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spawned children get this process's path, and with it the module `stub_engines`."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])
    yield


@asynccontextmanager
async def _running(
    options: dict[str, object] | None = None, factory: str = SCRIPTED, *, ready: bool = True, **settings: object
) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(factory, options or {}, **settings)  # type: ignore[arg-type]
    await engine.start()
    try:
        if ready:
            await asyncio.wait_for(engine.wait_ready(), 60)
        yield engine
    finally:
        await engine.stop()


@pytest.fixture
def running() -> Callable[..., object]:
    """A function: an async context manager with a started `EngineProcess`, ready unless `ready=False`."""
    return _running

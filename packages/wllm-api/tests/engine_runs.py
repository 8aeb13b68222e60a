"""What tests of an `EngineProcess` do with it: run, read, wait."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager

from wllm_api.engine import EngineProcess, RequestStream
from wllm_sched.messages import TokenEvent
from wllm_sched.sampling import SamplingParams

# The fixture `running`: a started engine, for options and a factory.
Running = Callable[..., AbstractAsyncContextManager[EngineProcess]]
ENDLESS = SamplingParams(ignore_eos=True, max_tokens=None)


def run(test: Coroutine[object, object, None]) -> None:
    """Run a test, for two minutes at most."""
    asyncio.run(asyncio.wait_for(test, 120))


async def read(stream: RequestStream) -> list[TokenEvent]:
    """The events of a request, to its end."""
    return [event async for event in stream]


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    while not condition():
        await asyncio.sleep(0.02)

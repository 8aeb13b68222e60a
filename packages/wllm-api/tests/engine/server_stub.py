"""A server that has nothing but an engine process; run as a program: server_stub.py PORT PHASE."""

import asyncio
import signal
import sys

from wllm_api.engine import EngineProcess
from wllm_sched.sampling import SamplingParams


async def serve(port: int, phase: str) -> None:
    engine = EngineProcess("stub_engines:probed", {"port": port, "phase": phase})
    await engine.start()
    try:
        if phase != "loading":
            await engine.wait_ready()
        if phase == "computing":
            engine.submit([5], SamplingParams())
        await asyncio.sleep(1.0)
        print("up", flush=True)
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        # Had the interrupt reached the engine too, it would be dead and restarting by now.
        await asyncio.sleep(0.5)
        print(engine.state, flush=True)
        await engine.stop()
        print(engine.state, flush=True)


if __name__ == "__main__":
    if sys.platform == "win32":
        signal.signal(signal.SIGBREAK, signal.default_int_handler)
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))

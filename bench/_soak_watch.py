"""Looks at the server of the soak test while the load runs, and when all is quiet."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import perf_counter

from _soak_load import Load
from _soak_server import Memory, SoakServer

SAMPLE_S = 2.0
MAX_GROWTH_MIB = 64.0
QUIET_S = 15.0


class Watch:
    """Samples memory and the counters of /metrics."""

    def __init__(self, server: SoakServer, load: Load) -> None:
        self._server = server
        self._load = load
        self._begin = self._told = perf_counter()
        self._memory: list[tuple[float, Memory]] = []
        self._metrics: dict[str, float] = {}
        self._most_running = 0.0

    async def run(self) -> None:
        """Until it is cancelled; a line a minute."""
        while True:
            with suppress(OSError):  # it may have ended; `at_rest` says so
                await self.look()
            if perf_counter() - self._told >= 60:
                self._told = perf_counter()
                minutes, memory = (self._told - self._begin) / 60, self._memory[-1][1]
                tally = self._load.tally
                vram = "" if memory.vram is None else f", VRAM {memory.vram:.0f}"
                print(
                    f"{minutes:5.1f} min: {sum(tally.sent.values())} requests, {tally.tokens} tokens, "
                    f"{self._load.num_open} open; MiB: server {memory.server:.0f}, engine {memory.engine:.0f}{vram}; "
                    f"{len(tally.violations)} violations",
                    flush=True,
                )
            await asyncio.sleep(SAMPLE_S)

    async def look(self) -> None:
        """Take one sample."""
        self._memory.append((perf_counter() - self._begin, await asyncio.to_thread(self._server.memory)))
        self._metrics = await asyncio.to_thread(self._server.metrics)
        self._most_running = max(self._most_running, self._metrics["num_requests_running"])

    async def at_rest(self) -> list[str]:
        """What is left although nobody asks for anything."""
        deadline = perf_counter() + QUIET_S
        while True:
            try:
                await self.look()
            except OSError as error:
                return [f"the server does not answer any more: {error}"]
            now = self._metrics
            left = [
                f"{name} is {now[name]:.0f} instead of {wanted:.0f} after the last request"
                for name, wanted in (
                    ("num_requests_running", 0.0),
                    ("num_requests_waiting", 0.0),
                    ("kv_blocks_free", now["kv_blocks"]),
                )
                if now[name] != wanted
            ]
            if now["engine_restarts_total"]:
                left.append(f"the engine was restarted {now['engine_restarts_total']:.0f} times")
            if not left or perf_counter() > deadline:
                return left
            await asyncio.sleep(0.1)

    def growth(self) -> list[str]:
        """Minutes in which memory was more than `MAX_GROWTH_MIB` above the first minute's."""
        wrong = []
        for name in ("server", "engine", "vram"):
            minutes = self._by_minute(name)
            wrong += [
                f"{name} memory grew from {minutes[0]:.0f} MiB in the first minute to {most:.0f} MiB in minute {number}"
                for number, most in enumerate(minutes[1:], start=2)
                if most - minutes[0] > MAX_GROWTH_MIB
            ]
        return wrong

    def vram_left(self) -> list[str]:
        """What the ended server still holds of the GPU's memory."""
        before, after = self._server.vram_before, self._server.vram_after()
        if before is None or after is None or after - before <= MAX_GROWTH_MIB:
            return []
        return [f"VRAM in use is {after:.0f} MiB after Ctrl+C; it was {before:.0f} MiB before the start"]

    def summary(self) -> dict[str, object]:
        """What was seen, by name."""
        counters = {"max_steps_in_flight": round(self._metrics["max_steps_in_flight"])} | {
            name.removesuffix("_total"): round(value)
            for name, value in self._metrics.items()
            if name.endswith("_total") and not name.startswith("request_")
        }
        memory = {
            f"{name}_mib": [round(most) for most in minutes]
            for name in ("server", "engine", "vram")
            if (minutes := self._by_minute(name))
        }
        ends = {
            "vram_before_and_after": (self._server.vram_before, self._server.vram_after()),
            "end_s": self._server.end_s,
        }
        return {"most_running": round(self._most_running), **counters, **memory, **ends}

    def _by_minute(self, name: str) -> list[float]:
        # The most in each whole minute; what is left over counts to the last one.
        whole = max(int(self._memory[-1][0] // 60), 1)
        most = [0.0] * whole
        for at, memory in self._memory:
            value = getattr(memory, name)
            if value is None:
                return []
            most[min(int(at // 60), whole - 1)] = max(most[min(int(at // 60), whole - 1)], value)
        return most

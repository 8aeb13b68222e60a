"""`SpillWatch`: notices when Windows moves an engine's GPU memory to host memory, which nothing else tells.

The engine asks with its counters, on its own thread; DXGI is asked once a second at most. Elsewhere than on Windows
memory does not move, and the answer is always 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from wllm_runtime.dxgi import Adapter
from wllm_runtime.memory import MIB

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 1.0
# Below this it may be small change of the driver. A guess: what Windows moves is whole allocations, of MiBs.
_WARN_BYTES = 64 * MIB


class SpillWatch:
    """Watches one GPU, None for one without DXGI. `clock` counts seconds."""

    def __init__(self, adapter: Adapter | None, clock: Callable[[], float] = perf_counter) -> None:
        self._adapter, self._clock = adapter, clock
        # The least host memory that was seen: what is pinned is there from the start and is no spill.
        self._least: int | None = None
        self._num_bytes = 0
        self._next_look = clock()
        self._warned = False

    def begin(self, num_bytes: int) -> None:
        """The engine is ready, and its process has taken `num_bytes` of the GPU: what is not there was moved."""
        if self._adapter is None:
            return
        own, host = self._adapter.own_memory(), self._adapter.host_memory()
        if own is not None and host is not None:
            self._least = host - min(max(num_bytes - own, 0), host)

    def num_bytes(self) -> int:
        """Bytes that are in host memory: moved before `begin`, and since that or the first call; warns once."""
        if self._adapter is not None and self._clock() >= self._next_look:
            self._next_look = self._clock() + _INTERVAL_S
            self._look(self._adapter)
        return self._num_bytes

    def close(self) -> None:
        """Give the adapter back; the last figure stays."""
        if self._adapter is not None:
            self._adapter.close()
            self._adapter = None

    def _look(self, adapter: Adapter) -> None:
        held = adapter.host_memory()
        if held is None:
            return
        self._least = held if self._least is None else min(self._least, held)
        self._num_bytes = held - self._least
        if self._num_bytes >= _WARN_BYTES and not self._warned:
            self._warned = True
            _LOG.warning(
                "Windows has moved %d MiB of the engine's GPU memory to host memory, which makes steps many times "
                "slower: the programs on the GPU want more than it has. Close other ones, or start again with a lower "
                "gpu_memory_utilization; the metric gpu_spilled_bytes tells how much it is now",
                self._num_bytes // MIB,
            )

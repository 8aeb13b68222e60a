"""`HostTier`: KV blocks in the memory of the host, and the copies between them and the KV cache.

Runs the swaps that `wllm_cache.HostPool` issues, in their order. On CUDA they go to a stream of their own, by the GPU's
copy engines: a step neither waits for them nor shares its multiprocessors with them, except for the gathering of what
lies in many places of the cache, at the speed of device memory. On a CPU they run at once. Called by the runner only,
where its steps run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from typing import Protocol

import psutil
import torch
from torch import Tensor

from wllm_cache import BlockSwap
from wllm_runtime.errors import OutOfMemory
from wllm_runtime.kv_cache import KVCache
from wllm_runtime.transfers import upload

_MIB = 1 << 20
# Pinned memory is asked for in pieces, since a driver may refuse a large one; a power of two, to which torch rounds up.
_PIECE_BYTES = 256 * _MIB
# Device memory that blocks go through: enough for the bus to run at full speed, little enough not to be missed.
_STAGING_BYTES = 32 * _MIB


class HostTier:
    """`num_blocks` host blocks for the blocks of `kv`; raises `OutOfMemory` where the host has no room for them."""

    def __init__(self, kv: KVCache, num_blocks: int) -> None:
        device = kv.data.device
        self.num_issued = 0
        self._lane: _Lane = _CudaLane(device) if device.type == "cuda" else _NoLane()
        bytes_per_block = kv.nbytes // kv.num_blocks
        num_bytes = num_blocks * bytes_per_block
        free = psutil.virtual_memory().available
        if num_bytes > free:
            raise _does_not_fit(num_bytes, f"{free / _MIB:,.0f} MiB of RAM are free")
        try:
            parts = [kv.data] if kv.scales is None else [kv.data, kv.scales]
            num_staged = min(self.staging_bytes(bytes_per_block) // bytes_per_block, num_blocks)
            self._parts = [_Part(part, num_blocks, num_staged) for part in parts]
        except RuntimeError as error:
            raise _does_not_fit(num_bytes, f"the system refused to give or pin it: {error}") from error

    @staticmethod
    def staging_bytes(bytes_per_block: int) -> int:
        """Device memory that a tier takes at most, for a cache with blocks of this size."""
        return max(_STAGING_BYTES, bytes_per_block)

    def swap(self, swaps: Sequence[BlockSwap]) -> None:
        """Start copies, behind everything that the current stream has been given; nothing waits."""
        self.num_issued += len(swaps)
        with self._lane.behind_steps(self.num_issued):
            for to_host, group in groupby(swaps, key=lambda swap: swap.to_host):
                # In the order of host blocks, so that neighbours travel in one copy.
                pairs = sorted((swap.host_block, swap.block) for swap in group)
                for part in self._parts:
                    part.copy(pairs, to_host)

    def wait_for(self, num_swaps: int) -> None:
        """Let the current stream wait until the first `num_swaps` of all swaps are done."""
        assert num_swaps <= self.num_issued, f"I20: {num_swaps} swaps are waited for, {self.num_issued} were given"
        self._lane.wait_for(num_swaps)

    def num_done(self) -> int:
        """How many of all swaps are known to be done; waits for none."""
        return self._lane.num_done()

    def finish(self) -> int:
        """Wait until all swaps are done; how many these are."""
        self._lane.finish()
        return self._lane.num_done()


class _Part:
    # One tensor of the cache, [layers, blocks, ..], as [blocks, layers, words], and the host's blocks beside it.

    def __init__(self, part: Tensor, num_blocks: int, num_staged: int) -> None:
        self._device = part.device
        self._blocks = part.flatten(2).view(torch.int64).transpose(0, 1)
        layers, words = self._blocks.shape[1:]
        block_bytes = layers * words * torch.int64.itemsize
        self._piece_blocks = max(_PIECE_BYTES // block_bytes, 1)
        pinned = part.is_cuda
        self._pieces = [
            torch.empty(
                min(self._piece_blocks, num_blocks - first), layers, words, dtype=torch.int64, pin_memory=pinned
            )
            for first in range(0, num_blocks, self._piece_blocks)
        ]
        self._staging = torch.empty(num_staged, layers, words, dtype=torch.int64, device=part.device)

    def copy(self, pairs: Sequence[tuple[int, int]], to_host: bool) -> None:
        for first in range(0, len(pairs), len(self._staging)):
            batch = pairs[first : first + len(self._staging)]
            staged = self._staging[: len(batch)]
            ids = upload([block for _, block in batch], torch.int64, self._device)
            if to_host:
                torch.index_select(self._blocks, 0, ids, out=staged)
            start = 0
            for host in self._runs([host_block for host_block, _ in batch]):
                run = staged[start : start + len(host)]
                target, source = (host, run) if to_host else (run, host)
                target.copy_(source, non_blocking=True)
                start += len(host)
            if not to_host:
                self._blocks.index_copy_(0, ids, staged)

    def _runs(self, host_blocks: Sequence[int]) -> Iterator[Tensor]:
        # The memory of neighbouring host blocks in one piece, for each stretch of them.
        size = self._piece_blocks
        for _, stretch in groupby(enumerate(host_blocks), key=lambda entry: (entry[1] - entry[0], entry[1] // size)):
            first, *others = (host_block for _, host_block in stretch)
            yield self._pieces[first // size][first % size :][: 1 + len(others)]


class _Lane(Protocol):
    def behind_steps(self, num_issued: int) -> AbstractContextManager[None]: ...

    def wait_for(self, num_swaps: int) -> None: ...

    def num_done(self) -> int: ...

    def finish(self) -> None: ...


class _CudaLane:
    # A stream of its own. Each batch ends with an event, beside the number of swaps that are done when it is reached.

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._events: deque[tuple[int, torch.cuda.Event]] = deque()
        self._num_done = 0

    @contextmanager
    def behind_steps(self, num_issued: int) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        self._events.append((num_issued, self._stream.record_event()))

    def wait_for(self, num_swaps: int) -> None:
        if num_swaps > self._num_done:
            event = next(event for num_issued, event in self._events if num_issued >= num_swaps)
            torch.cuda.current_stream().wait_event(event)

    def num_done(self) -> int:
        while self._events and self._events[0][1].query():  # type: ignore[no-untyped-call]
            self._num_done, _ = self._events.popleft()
        return self._num_done

    def finish(self) -> None:
        self._stream.synchronize()


class _NoLane:
    # Copies run where they are enqueued.

    def __init__(self) -> None:
        self._num_done = 0

    @contextmanager
    def behind_steps(self, num_issued: int) -> Iterator[None]:
        yield
        self._num_done = num_issued

    def wait_for(self, num_swaps: int) -> None:
        pass

    def num_done(self) -> int:
        return self._num_done

    def finish(self) -> None:
        pass


def _does_not_fit(num_bytes: int, why: str) -> OutOfMemory:
    return OutOfMemory(
        f"the host blocks of kv_offload_gib take {num_bytes / _MIB:,.0f} MiB, and {why}; lower kv_offload_gib"
    )

"""`HostPool`: the second tier of a `BlockPool`, in the memory of the host: which host block holds which content.

Content that becomes findable on the device is copied to the host in the background, so a device block is reused at no
cost, and what it held comes back by copy. Owns host block ids, their order of use and the swaps: copies of one block
between the tiers. Issues swaps and never runs them: whoever does runs them in the order of issue and reports how many
are done. Called by `BlockPool` and `BlockTable`, and by the scheduler for swaps.

I20  while a swap is under way its device block is referenced, so that nobody else gets it, and its host block keeps its
     content; nobody reads a loaded block before as many swaps are done as `arrival` tells.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from wllm_cache.pool import BlockPool

MAX_SWAPS = 128  # handed out at once: starting a copy takes time of the thread that also starts steps
MAX_SAVES = 64  # under way: their blocks are missing elsewhere, and someone may wait for them
SAVE_BATCH = 16  # fewer are not worth the overhead of a copy


class BlockSwap(NamedTuple):
    """A copy of device block `block` to block `host_block` of the host, or the other way."""

    block: int
    host_block: int
    to_host: bool


class HostPool:
    """`num_blocks` host blocks behind `pool`, ids 0 .. num_blocks - 1.

    `num_issued` and `num_done` count swaps; `num_saves` and `num_loads` count those issued in each direction.
    """

    def __init__(self, pool: BlockPool, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_issued = 0
        self.num_done = 0
        self.num_saves = 0
        self.num_loads = 0
        self._pool = pool
        self._max_saves = max(min(MAX_SAVES, pool.num_blocks // 8), 1)
        self._save_batch = max(min(SAVE_BATCH, pool.num_blocks // 16), 1)
        self._block_of: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._num_swaps = [0] * num_blocks  # under way, of each host block
        self._free = list(range(num_blocks - 1, -1, -1))
        self._unsaved: OrderedDict[int, bytes] = OrderedDict()
        self._under_way: deque[BlockSwap] = deque()
        self._num_taken = 0
        self._arrivals: dict[int, int] = {}

    @property
    def num_used(self) -> int:
        """Host blocks whose content can be found."""
        return len(self._block_of)

    @property
    def num_under_way(self) -> int:
        """Swaps that were issued and are not reported as done."""
        return len(self._under_way)

    @property
    def has_work(self) -> bool:
        """Whether swaps are under way, or enough blocks wait to be saved."""
        return bool(self._under_way) or len(self._unsaved) >= self._save_batch

    def keep(self, block: int, content_hash: bytes) -> None:
        """Content of device block `block` was used: it is the last to leave the host, and saved if it is not there."""
        if content_hash in self._block_of:
            self._block_of.move_to_end(content_hash)
        else:
            self._unsaved[block] = content_hash

    def save(self) -> None:
        """Issue swaps of device blocks that are not on the host, oldest first, as far as few are under way."""
        if len(self._unsaved) < self._save_batch:
            return
        while self._unsaved and len(self._under_way) < self._max_saves:
            block, content_hash = next(iter(self._unsaved.items()))
            if content_hash not in self._block_of and self._pool.holds(block, content_hash):
                host_block = self._make_room()
                if host_block is None:
                    return
                self._hashes[host_block] = content_hash
                self._block_of[content_hash] = host_block
                self._issue(BlockSwap(block, host_block, to_host=True))
                self.num_saves += 1
            del self._unsaved[block]

    def load(self, content_hash: bytes) -> int | None:
        """A new device block, findable and with one reference, that gets this content; None without it or a block."""
        host_block = self._block_of.get(content_hash)
        if host_block is None or not self._pool.num_free:
            return None
        (block,) = self._pool.allocate(1)
        self._pool.seal(block, content_hash)
        self._issue(BlockSwap(block, host_block, to_host=False))
        self.num_loads += 1
        self._arrivals[block] = self.num_issued
        return block

    def arrival(self, block: int) -> int:
        """How many swaps must be done before device block `block` can be read; 0 if it is not being loaded."""
        return self._arrivals.get(block, 0)

    def take(self, needed: int = 0) -> tuple[BlockSwap, ...]:
        """The next swaps to run: not too many, but all of the first `needed` that were ever issued."""
        count = max(min(MAX_SWAPS, self.num_issued - self._num_taken), needed - self._num_taken)
        first = self._num_taken - self.num_done
        self._num_taken += count
        return tuple(self._under_way[index] for index in range(first, first + count))

    def finish(self, num_done: int) -> None:
        """The first `num_done` of all swaps are done: their blocks are at their owners' disposal."""
        assert num_done <= self._num_taken, f"I20: {num_done} swaps are done, {self._num_taken} were handed out"
        while self.num_done < num_done:
            block, host_block, to_host = self._under_way.popleft()
            self.num_done += 1
            self._num_swaps[host_block] -= 1
            if self._hashes[host_block] is None:
                self._free_if_idle(host_block)
            if not to_host:
                del self._arrivals[block]
            self._pool.release(block)

    def forget(self, content_hash: bytes) -> None:
        """Make this content unfindable on the host."""
        host_block = self._block_of.pop(content_hash, None)
        if host_block is not None:
            self._hashes[host_block] = None
            self._free_if_idle(host_block)

    def reset(self) -> None:
        """Forget all content; swaps under way go on."""
        for content_hash in list(self._block_of):
            self.forget(content_hash)
        self._unsaved.clear()

    def held_blocks(self) -> list[int]:
        """The device blocks that swaps under way hold a reference to, one entry each."""
        return [swap.block for swap in self._under_way]

    def check(self) -> None:
        """Assert that every host block is free, findable or in a swap, and I20; linear, for tests."""
        swaps = Counter(swap.host_block for swap in self._under_way)
        counted = {block: count for block, count in enumerate(self._num_swaps) if count}
        hashed = {content: block for block, content in enumerate(self._hashes) if content is not None}
        assert hashed == self._block_of, "I3: the host's hash map is not inverse"
        assert counted == swaps, f"I20: {dict(swaps)} swaps are under way, {counted} are counted"
        free, used = set(self._free), {*hashed.values(), *swaps}
        assert len(free) == len(self._free), "I2: a host block is free twice"
        assert free.isdisjoint(used), f"I1: host blocks {free & used} are free and in use"
        assert len(free) + len(used) == self.num_blocks, f"I1: {len(free)} host blocks free + {len(used)} in use"
        for swap in self._under_way:
            assert self._pool.num_references(swap.block), f"I20: {swap} is under way and its block is free"
        assert self.num_done <= self._num_taken <= self.num_issued, "I20: swaps are done that nobody took"
        assert self.num_issued - self.num_done == len(self._under_way), "I20: swaps are counted wrong"

    def _issue(self, swap: BlockSwap) -> None:
        self._pool.retain(swap.block)
        self._num_swaps[swap.host_block] += 1
        self._under_way.append(swap)
        self.num_issued += 1

    def _make_room(self) -> int | None:
        # Skips what is in a swap: a copy that has not run yet must find what it was issued for.
        if not self._free:
            for content_hash, host_block in self._block_of.items():
                if not self._num_swaps[host_block]:
                    self.forget(content_hash)
                    break
        return self._free.pop() if self._free else None

    def _free_if_idle(self, host_block: int) -> None:
        if not self._num_swaps[host_block]:
            self._free.append(host_block)

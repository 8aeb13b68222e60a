"""`BlockPool`: who holds which KV block, and which block holds which content.

Owns block ids, reference counts, the list of free blocks (least recently used first) and the map from content hash to
block. A free block keeps its content and its hash until it is allocated again, so freeing is what caches; with host
blocks, content outlives that too (`HostPool`). Never touches tensors, never waits, never locks: one thread calls it,
usually through `BlockTable`.

Invariants, checked by `check()`:
I1  free blocks + referenced blocks = pool size.
I2  a block's reference count is 0 if and only if it is in the free list.
I3  one hash, one block: the map and the blocks' own hashes are inverse to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wllm_cache.errors import InvalidSize, OutOfBlocks
from wllm_cache.host import HostPool


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each, ids 0 .. num_blocks - 1; raises `InvalidSize`.

    `host` is the second tier of `num_host_blocks` blocks; None if there are none.
    """

    def __init__(self, num_blocks: int, block_size: int, *, num_host_blocks: int = 0) -> None:
        if num_blocks < 1 or block_size < 1 or num_host_blocks < 0:
            raise InvalidSize(
                f"A pool needs at least one block of at least one token; got num_blocks={num_blocks}, "
                f"block_size={block_size}, num_host_blocks={num_host_blocks}. Give the first two as positive numbers "
                "and the third as 0 or more."
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        self.generation = 0
        self._references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # The free list is a ring through these two arrays; index num_blocks is its anchor. A block can leave from the
        # middle in constant time, which a prefix hit on a free block needs.
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self.host = HostPool(self, num_host_blocks) if num_host_blocks else None

    @property
    def num_cached(self) -> int:
        """Blocks whose content can be found by its hash, in use or free."""
        return len(self._block_of)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one reference and no hash; raises `OutOfBlocks` and then takes none."""
        if count > self.num_free:
            raise OutOfBlocks(count, self.num_free)
        anchor = self.num_blocks
        taken = []
        for _ in range(count):
            block = self._next[anchor]
            self._unlink(block)
            self._references[block] = 1
            self.forget(block)
            taken.append(block)
        return taken

    def retain(self, block: int) -> None:
        """Add a reference to `block`, free or not; its content stays."""
        if self._references[block] == 0:
            self._unlink(block)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference to `block`; with the last one it becomes free and stays findable until it is reused."""
        references = self._references[block] - 1
        assert references >= 0, f"I2: block {block} is released more often than it was taken"
        self._references[block] = references
        if references == 0:
            # A block without a hash can never be hit: it is the first to be reused.
            anchor = self.num_blocks
            before = self._previous[anchor] if self._hashes[block] is not None else anchor
            after = self._next[before]
            self._next[before] = self._previous[after] = block
            self._previous[block], self._next[block] = before, after
            self.num_free += 1

    def seal(self, block: int, content_hash: bytes) -> bool:
        """Make a full block findable; False if another block already has this content, which then stays the one."""
        assert self._references[block] > 0, f"I2: free block {block} is sealed"
        if content_hash in self._block_of:
            return False
        assert self._hashes[block] is None, f"I3: sealed block {block} got another content"
        self._block_of[content_hash] = block
        self._hashes[block] = content_hash
        if self.host is not None:
            self.host.keep(block, content_hash)
        return True

    def forget(self, block: int) -> None:
        """Make `block` unfindable, because its content is about to change or is not to be trusted."""
        content_hash = self._hashes[block]
        if content_hash is not None:
            del self._block_of[content_hash]
            self._hashes[block] = None

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest known beginning of a hash chain."""
        found = []
        for content_hash in hashes:
            block = self._block_of.get(content_hash)
            if block is None:
                break
            found.append(block)
        return found

    def fetch(self, content_hash: bytes) -> int | None:
        """A block with this content, with a reference added, that may have to be loaded first; None without one."""
        block = self._block_of.get(content_hash)
        if block is None:
            return None if self.host is None else self.host.load(content_hash)
        self.retain(block)
        return block

    def holds(self, block: int, content_hash: bytes) -> bool:
        """Whether `block` is the one with this content."""
        return self._hashes[block] == content_hash

    def reset(self) -> None:
        """Forget all content, now and for tables that are in use; blocks in use stay with their owners."""
        self.generation += 1
        self._block_of.clear()
        self._hashes = [None] * self.num_blocks
        if self.host is not None:
            self.host.reset()

    def num_references(self, block: int) -> int:
        """References to `block`; 0 means free."""
        return self._references[block]

    def is_sealed(self, block: int) -> bool:
        """Whether `block` can be found by its content."""
        return self._hashes[block] is not None

    def count_free(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are free: retaining these costs free blocks, the others are shared."""
        references = self._references
        return sum(not references[block] for block in blocks)

    def check(self) -> None:
        """Assert I1 to I3, and I20 with host blocks; linear in the pool, for tests."""
        free: list[int] = []
        before, block = self.num_blocks, self._next[self.num_blocks]
        while block != self.num_blocks:
            assert self._previous[block] == before, f"I2: the free list is torn at block {block}"
            assert len(free) < self.num_blocks, "I2: the free list runs in a circle"
            free.append(block)
            before, block = block, self._next[block]
        referenced = sum(references > 0 for references in self._references)
        assert len(free) == self.num_free, f"I1: {len(free)} blocks in the free list, {self.num_free} counted"
        assert self.num_free + referenced == self.num_blocks, f"I1: {self.num_free} free + {referenced} in use"
        assert all(self._references[block] == 0 for block in free), "I2: a block in use is in the free list"
        hashed = {block: content for block, content in enumerate(self._hashes) if content is not None}
        assert {content: block for block, content in hashed.items()} == self._block_of, "I3: hash map is not inverse"
        assert len(hashed) == len(self._block_of), "I3: two blocks carry one hash"
        if self.host is not None:
            self.host.check()

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self.num_free -= 1

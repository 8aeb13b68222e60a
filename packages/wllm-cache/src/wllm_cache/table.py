"""`BlockTable`: the blocks that hold one request's KV, in token order.

Owns references to blocks of a `BlockPool` and the hash chain of its tokens. Never decides who gets blocks and never
sees KV. A table serves one growing list of tokens: between calls tokens may be appended, never changed. Called by the
scheduler, or by anyone who pages a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from wllm_cache.errors import OutOfBlocks
from wllm_cache.hashing import block_hashes, root_hash
from wllm_cache.pool import BlockPool


class BlockTable:
    """An empty table over `pool`.

    `arrival`: some of its blocks are on their way from the host and can be read when so many swaps of `pool.host` are
    done; 0 if there are none.
    """

    __slots__ = ("_hashes", "_root", "arrival", "block_ids", "num_sealed", "pool")

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.block_ids: list[int] = []
        self.num_sealed = 0
        self.arrival = 0
        self._root = root_hash(b"", pool.generation)
        self._hashes: list[bytes] = []

    @property
    def num_tokens(self) -> int:
        """Tokens that the blocks have room for."""
        return len(self.block_ids) * self.pool.block_size

    def match(self, token_ids: Sequence[int], salt: bytes = b"") -> list[int]:
        """The cached blocks that `adopt` would take from the device now; takes nothing."""
        assert not self.block_ids, "Only an empty table looks for cached blocks"
        return self.pool.find(self._chain(token_ids, salt))

    def adopt(self, token_ids: Sequence[int], salt: bytes = b"", *, limit: int | None = None) -> int:
        """Fill an empty table with the longest cached beginning of `token_ids`; the number of tokens that it holds.

        Only full blocks, and always less than all tokens, so that at least one is left to compute; at most `limit`
        tokens if given. What is on the host gets new blocks and arrives later. `salt` keeps the table's content, also
        what it seals later, apart from equal tokens under another salt.
        """
        assert not self.block_ids, "Only an empty table looks for cached blocks"
        hashes = self._chain(token_ids, salt)
        if limit is not None:
            hashes = hashes[: limit // self.pool.block_size]
        for content_hash in hashes:
            block = self.pool.fetch(content_hash)
            if block is None:
                break
            self.block_ids.append(block)
        self.num_sealed = len(self.block_ids)
        if self.pool.host is not None:
            self.arrival = max(map(self.pool.host.arrival, self.block_ids), default=0)
        return self.num_tokens

    def grow(self, num_tokens: int) -> tuple[int, ...]:
        """Make room for `num_tokens` tokens in all; the ids of the new blocks, or `OutOfBlocks` and no change."""
        missing = -(-num_tokens // self.pool.block_size) - len(self.block_ids)
        if missing <= 0:
            return ()
        added = self.pool.allocate(missing)
        self.block_ids += added
        return tuple(added)

    def seal(self, token_ids: Sequence[int], num_tokens: int | None = None) -> int:
        """Make the full blocks of the first `num_tokens` (default: all) of `token_ids` findable; how many were new.

        Their KV must be written, or be on its way to the device before anything that reads it.
        """
        count = len(token_ids) if num_tokens is None else num_tokens
        num_full = count // self.pool.block_size
        assert num_full <= len(self.block_ids), "A block is sealed that the table does not have"
        first = self.num_sealed
        if num_full <= first:
            return 0
        self._extend_hashes(token_ids, num_full)
        self.num_sealed = num_full
        return sum(self.pool.seal(self.block_ids[index], self._hashes[index]) for index in range(first, num_full))

    def fork(self, num_tokens: int) -> tuple[BlockTable, int | None]:
        """A table with the same first `num_tokens` tokens, and the block that its owner must copy into the new one.

        Full blocks are shared by reference. A partial last block cannot be: the child gets a fresh one, its last, and
        the id of the block to copy from; None if `num_tokens` ends a block. Raises `OutOfBlocks` and changes nothing.
        """
        num_full, rest = divmod(num_tokens, self.pool.block_size)
        assert -(-num_tokens // self.pool.block_size) <= len(self.block_ids), "A fork of tokens without a block"
        if rest and not self.pool.num_free:
            raise OutOfBlocks(1, 0)
        child = self.share(num_full * self.pool.block_size)
        if not rest:
            return child, None
        child.grow(num_tokens)
        return child, self.block_ids[num_full]

    def share(self, num_tokens: int) -> BlockTable:
        """A table that holds references to the blocks of the first `num_tokens` tokens, a partial last one included.

        It keeps those tokens' KV alive; its owner must not write to it.
        """
        child = BlockTable(self.pool)
        child.block_ids = self.block_ids[: -(-num_tokens // self.pool.block_size)]
        for block in child.block_ids:
            self.pool.retain(block)
        num_full = num_tokens // self.pool.block_size
        child.num_sealed = min(self.num_sealed, num_full)
        child.arrival = self.arrival
        child._root, child._hashes = self._root, self._hashes[:num_full]
        return child

    def release(self) -> None:
        """Give all blocks back, the last first, so that of what stays cached the beginnings live longest."""
        if self.pool.host is not None:
            for index in reversed(range(self.num_sealed)):
                self.pool.host.keep(self.block_ids[index], self._hashes[index])
        for block in reversed(self.block_ids):
            self.pool.release(block)
        self.block_ids = []
        self.num_sealed = 0
        self.arrival = 0

    def forget(self) -> None:
        """Make the table's blocks unfindable, on the host too: their KV is not to be trusted."""
        for block in self.block_ids:
            self.pool.forget(block)
        if self.pool.host is not None:
            for content_hash in self._hashes[: self.num_sealed]:
                self.pool.host.forget(content_hash)

    def _chain(self, token_ids: Sequence[int], salt: bytes) -> list[bytes]:
        root = root_hash(salt, self.pool.generation)
        if root != self._root:
            self._root, self._hashes = root, []
        # The last token is left out even when it ends a block: without computing it there would be no logits.
        num_blocks = (len(token_ids) - 1) // self.pool.block_size
        self._extend_hashes(token_ids, num_blocks)
        return self._hashes[:num_blocks]

    def _extend_hashes(self, token_ids: Sequence[int], num_blocks: int) -> None:
        done = len(self._hashes)
        if done < num_blocks:
            size = self.pool.block_size
            parent = self._hashes[-1] if done else self._root
            self._hashes += block_hashes(parent, token_ids[done * size : num_blocks * size], size)

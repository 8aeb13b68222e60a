"""Names for block contents: a sha256 chain over (parent, token ids), begun at a root that holds the salt.

A block's KV depends on every token before it, so its hash covers its parent's. sha256, because two prompts that
collide would read each other's KV; an 8,192-token prompt costs well under a millisecond. Pure functions, no state.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256


def root_hash(salt: bytes, generation: int = 0) -> bytes:
    """The parent of a first block; prompts with another `salt` or cache `generation` never share blocks."""
    return sha256(b"wllm-cache" + generation.to_bytes(8, "little") + salt).digest()


def block_hashes(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the full blocks of `token_ids`, the first of which follows `parent`; a partial tail has none.

    Token ids are hashed as 32-bit integers; OverflowError for one that does not fit.
    """
    content = array("i", token_ids).tobytes()
    block_bytes = 4 * block_size
    hashes = []
    for start in range(0, len(content) - block_bytes + 1, block_bytes):
        parent = sha256(parent + content[start : start + block_bytes]).digest()
        hashes.append(parent)
    return hashes

"""The hash chain."""

from __future__ import annotations

import pytest

from wllm_cache import block_hashes, root_hash


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(block_hashes(b"", range(n), 4)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_hash_covers_everything_before_it() -> None:
    root = root_hash(b"")
    first = block_hashes(root, [1, 2, 3, 4, 5, 6], 2)
    second = block_hashes(root, [9, 2, 3, 4, 5, 6], 2)
    assert not set(first) & set(second)


def test_a_chain_can_be_continued() -> None:
    root = root_hash(b"")
    whole = block_hashes(root, range(8), 2)
    assert block_hashes(whole[1], range(4, 8), 2) == whole[2:]


def test_salts_and_generations_are_apart() -> None:
    roots = {root_hash(salt, generation) for salt in (b"", b"a", b"b") for generation in (0, 1)}
    assert len(roots) == 6


def test_block_boundaries_matter() -> None:
    assert block_hashes(b"", [1, 2, 3, 4], 2)[-1] != block_hashes(b"", [1, 2, 3, 4], 4)[-1]


def test_an_id_beyond_32_bits_is_an_error() -> None:
    with pytest.raises(OverflowError):
        block_hashes(b"", [2**31], 1)

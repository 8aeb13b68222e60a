"""`BlockPool`: references, order of reuse, content."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from wllm_cache import BlockPool, CacheError, InvalidSize, OutOfBlocks


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 16)])
def test_impossible_sizes_are_refused_with_the_numbers(num_blocks: int, block_size: int) -> None:
    with pytest.raises(InvalidSize, match=f"num_blocks={num_blocks}, block_size={block_size}"):
        BlockPool(num_blocks, block_size)


def test_a_pool_can_be_emptied_and_filled_again() -> None:
    pool = BlockPool(5, 2)
    blocks = pool.allocate(5)
    assert sorted(blocks) == [0, 1, 2, 3, 4] and pool.num_free == 0
    pool.check()
    for block in blocks:
        pool.release(block)
    assert pool.num_free == 5
    pool.check()


def test_too_many_blocks_change_nothing() -> None:
    pool = BlockPool(3, 2)
    pool.allocate(1)
    with pytest.raises(OutOfBlocks) as caught:
        pool.allocate(3)
    assert (caught.value.needed, caught.value.free, pool.num_free) == (3, 2, 2)
    pool.check()


def test_out_of_blocks_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(OutOfBlocks(3, 2)))
    assert isinstance(copy, OutOfBlocks) and isinstance(copy, CacheError)
    assert (copy.needed, copy.free) == (3, 2)
    assert "3 needed, 2 free" in str(copy)


def test_a_block_is_free_only_without_references() -> None:
    pool = BlockPool(2, 2)
    (block,) = pool.allocate(1)
    pool.retain(block)
    pool.release(block)
    assert pool.num_references(block) == 1 and pool.num_free == 1
    pool.release(block)
    assert pool.num_free == 2


def test_a_free_block_keeps_its_content_until_it_is_reused() -> None:
    pool = BlockPool(2, 2)
    (block,) = pool.allocate(1)
    assert pool.seal(block, b"content")
    pool.release(block)
    assert pool.find([b"content"]) == [block]
    pool.allocate(2)
    assert pool.find([b"content"]) == [] and pool.num_cached == 0
    pool.check()


def test_a_hit_on_a_free_block_takes_it_off_the_free_list() -> None:
    pool = BlockPool(3, 2)
    block = pool.allocate(3)[1]
    pool.seal(block, b"content")
    for other in range(3):
        pool.release(other)
    pool.retain(block)
    assert pool.num_free == 2 and block not in pool.allocate(2)
    pool.check()


def test_the_least_recently_used_content_goes_first() -> None:
    pool = BlockPool(3, 2)
    for block in pool.allocate(3):
        pool.seal(block, bytes([block]))
    for block in (2, 0, 1):
        pool.release(block)
    assert [pool.allocate(1)[0] for _ in range(3)] == [2, 0, 1]


def test_blocks_without_content_go_before_any_content() -> None:
    pool = BlockPool(3, 2)
    pool.allocate(3)
    pool.seal(0, b"content")
    for block in (0, 1, 2):
        pool.release(block)
    assert pool.allocate(3)[2] == 0


def test_one_content_has_one_block() -> None:
    pool = BlockPool(2, 2)
    first, second = pool.allocate(2)
    assert pool.seal(first, b"content")
    assert not pool.seal(second, b"content")
    assert not pool.seal(first, b"content")
    assert pool.find([b"content"]) == [first] and not pool.is_sealed(second)
    pool.check()


def test_find_stops_at_the_first_gap() -> None:
    pool = BlockPool(3, 2)
    blocks = pool.allocate(3)
    for block, content in zip(blocks, (b"a", b"b", b"d")):
        pool.seal(block, content)
    assert pool.find([b"a", b"b", b"c", b"d"]) == blocks[:2]


def test_reset_forgets_content_and_keeps_owners() -> None:
    pool = BlockPool(2, 2)
    (block,) = pool.allocate(1)
    pool.seal(block, b"content")
    pool.reset()
    assert pool.find([b"content"]) == [] and pool.num_references(block) == 1
    pool.check()


def test_count_free_counts_what_a_hit_would_cost() -> None:
    pool = BlockPool(3, 2)
    blocks = pool.allocate(2)
    pool.release(blocks[0])
    assert pool.count_free(blocks) == 1


def test_a_release_too_many_breaks_i2() -> None:
    pool = BlockPool(1, 2)
    with pytest.raises(AssertionError, match="I2"):
        pool.release(0)


def test_another_content_for_a_sealed_block_breaks_i3() -> None:
    pool = BlockPool(1, 2)
    pool.allocate(1)
    pool.seal(0, b"a")
    with pytest.raises(AssertionError, match="I3"):
        pool.seal(0, b"b")


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (lambda pool: pool._references.__setitem__(0, 1), "I1"),
        (lambda pool: setattr(pool, "num_free", 1), "I1"),
        (lambda pool: (pool._references.__setitem__(0, 1), pool._references.__setitem__(1, 0)), "I2"),
        (lambda pool: pool._previous.__setitem__(0, 1), "I2"),
        (lambda pool: pool._hashes.__setitem__(0, b"content"), "I3"),
        (lambda pool: pool._block_of.__setitem__(b"content", 0), "I3"),
    ],
)
def test_check_finds_broken_invariants(broken: Callable[[BlockPool], object], name: str) -> None:
    pool = BlockPool(3, 2)
    pool.retain(1)
    pool.check()
    broken(pool)
    with pytest.raises(AssertionError, match=name):
        pool.check()

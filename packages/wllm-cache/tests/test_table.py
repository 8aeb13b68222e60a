"""`BlockTable`: adopt, grow, seal, fork, share, release."""

from __future__ import annotations

import pytest

from wllm_cache import BlockPool, BlockTable, OutOfBlocks


def cached(pool: BlockPool, tokens: list[int], salt: bytes = b"") -> None:
    """Leave the full blocks of `tokens` in the cache."""
    table = BlockTable(pool)
    table.adopt(tokens, salt)
    table.grow(len(tokens))
    table.seal(tokens)
    table.release()


def test_grow_adds_only_what_is_missing() -> None:
    table = BlockTable(BlockPool(8, 4))
    assert len(table.grow(5)) == 2
    assert table.grow(8) == ()
    assert table.grow(9) == (table.block_ids[2],)
    assert table.num_tokens == 12


def test_grow_is_all_or_nothing() -> None:
    pool = BlockPool(2, 4)
    table = BlockTable(pool)
    with pytest.raises(OutOfBlocks):
        table.grow(9)
    assert table.block_ids == [] and pool.num_free == 2


@pytest.mark.parametrize(("num_tokens", "hit"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_adopt_takes_full_blocks_and_leaves_a_token(num_tokens: int, hit: int) -> None:
    pool = BlockPool(8, 4)
    cached(pool, list(range(12)))
    assert BlockTable(pool).adopt(list(range(num_tokens))) == hit


def test_adopt_stops_where_tokens_differ() -> None:
    pool = BlockPool(8, 4)
    cached(pool, list(range(12)))
    assert BlockTable(pool).adopt([0, 1, 2, 3, 9, 9, 9, 9, 8, 9, 10, 11, 12]) == 4


def test_adopt_can_be_limited() -> None:
    pool = BlockPool(8, 4)
    cached(pool, list(range(12)))
    assert BlockTable(pool).adopt(list(range(12)), limit=0) == 0
    assert BlockTable(pool).adopt(list(range(12)), limit=7) == 4


def test_salts_do_not_share() -> None:
    pool = BlockPool(8, 4)
    cached(pool, list(range(8)), b"a")
    assert BlockTable(pool).adopt(list(range(9)), b"b") == 0
    assert BlockTable(pool).adopt(list(range(9))) == 0
    assert BlockTable(pool).adopt(list(range(9)), b"a") == 8


def test_match_takes_nothing() -> None:
    pool = BlockPool(8, 4)
    cached(pool, list(range(8)))
    assert len(BlockTable(pool).match(list(range(9)))) == 2
    assert pool.num_free == 8


def test_a_partial_block_is_not_sealed() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.grow(7)
    assert table.seal(list(range(7))) == 1
    assert [pool.is_sealed(block) for block in table.block_ids] == [True, False]


def test_seal_goes_no_further_than_what_is_computed() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.grow(12)
    assert table.seal(list(range(12)), 6) == 1
    assert table.seal(list(range(12)), 11) == 1
    assert table.seal(list(range(12)), 3) == 0
    assert table.num_sealed == 2


def test_equal_content_computed_twice_is_cached_once() -> None:
    pool = BlockPool(8, 4)
    first, second = BlockTable(pool), BlockTable(pool)
    for table in (first, second):
        table.grow(8)
    assert first.seal(list(range(8))) == 2
    assert second.seal(list(range(8))) == 0
    assert pool.num_cached == 2
    second.grow(12)
    assert second.seal(list(range(12))) == 1
    pool.check()


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    pool = BlockPool(8, 4)
    table, tokens = BlockTable(pool), [1, 2, 3]
    table.adopt(tokens)
    table.grow(3)
    for token in (4, 5, 6, 7, 8):
        tokens.append(token)
        table.grow(len(tokens))
        table.seal(tokens)
    table.release()
    assert BlockTable(pool).adopt([*tokens, 9]) == 8


def test_the_end_of_a_table_is_reused_before_its_beginning() -> None:
    pool = BlockPool(3, 4)
    cached(pool, list(range(12)))
    pool.allocate(1)
    assert BlockTable(pool).adopt(list(range(13))) == 8


def test_release_gives_everything_back() -> None:
    pool = BlockPool(4, 4)
    table = BlockTable(pool)
    table.grow(16)
    table.release()
    assert (table.block_ids, table.num_sealed, pool.num_free) == ([], 0, 4)


def test_fork_shares_full_blocks_and_copies_the_rest() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.grow(11)
    child, source = table.fork(10)
    assert child.block_ids[:2] == table.block_ids[:2]
    assert source == table.block_ids[2] != child.block_ids[2]
    assert [pool.num_references(block) for block in table.block_ids] == [2, 2, 1]
    child.release()
    table.release()
    pool.check()
    assert pool.num_free == 8


def test_fork_at_a_block_boundary_copies_nothing() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.grow(9)
    child, source = table.fork(8)
    assert source is None and child.block_ids == table.block_ids[:2]


def test_fork_without_a_free_block_changes_nothing() -> None:
    pool = BlockPool(2, 4)
    table = BlockTable(pool)
    table.grow(8)
    with pytest.raises(OutOfBlocks):
        table.fork(6)
    assert [pool.num_references(block) for block in table.block_ids] == [1, 1]


def test_a_fork_may_seal_what_its_parent_sealed_after_the_fork() -> None:
    pool = BlockPool(8, 4)
    table, tokens = BlockTable(pool), list(range(8))
    table.grow(8)
    child, _ = table.fork(8)
    assert table.seal(tokens) == 2
    assert child.seal(tokens) == 0
    pool.check()


def test_share_keeps_a_partial_block_alive() -> None:
    pool = BlockPool(4, 4)
    table = BlockTable(pool)
    table.grow(6)
    held = table.share(6)
    table.release()
    assert pool.num_free == 2
    held.release()
    assert pool.num_free == 4


def test_forget_makes_content_unfindable() -> None:
    pool = BlockPool(4, 4)
    table = BlockTable(pool)
    table.grow(8)
    table.seal(list(range(8)))
    table.forget()
    table.release()
    assert BlockTable(pool).adopt(list(range(9))) == 0
    pool.check()


def test_what_a_table_seals_after_a_reset_is_not_found() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.adopt(list(range(4)))
    table.grow(8)
    pool.reset()
    table.seal(list(range(8)))
    child = table.share(8)
    child.grow(12)
    child.seal(list(range(12)))
    assert BlockTable(pool).adopt(list(range(13))) == 0
    pool.check()


def test_a_released_table_can_adopt_again_after_a_reset() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.adopt(list(range(9)))
    table.release()
    pool.reset()
    cached(pool, list(range(8)))
    assert table.adopt(list(range(9))) == 8

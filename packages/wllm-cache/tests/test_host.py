"""The second tier: what is saved, what comes back, what a swap holds; and random tables over both tiers."""

from __future__ import annotations

from random import Random

import pytest

from wllm_cache import BlockPool, BlockSwap, BlockTable, HostPool, InvalidSize, OutOfBlocks

Content = tuple[bytes, tuple[int, ...]]


def two_tiers(num_blocks: int = 4, num_host_blocks: int = 8) -> tuple[BlockPool, HostPool]:
    pool = BlockPool(num_blocks, 2, num_host_blocks=num_host_blocks)
    assert pool.host is not None
    return pool, pool.host


def serve(pool: BlockPool, tokens: list[int]) -> int:
    """A request that computes `tokens`, seals them and ends; how many of them it found."""
    table = BlockTable(pool)
    found = table.adopt(tokens)
    table.grow(len(tokens))
    table.seal(tokens)
    table.release()
    pool.check()
    return found


def run_swaps(host: HostPool) -> tuple[BlockSwap, ...]:
    """Save and run everything, as a runner without delay."""
    host.save()
    swaps = host.take()
    host.finish(host.num_done + len(swaps))
    return swaps


def save_all(host: HostPool) -> None:
    while run_swaps(host):
        pass


def test_no_host_blocks_no_tier() -> None:
    assert BlockPool(4, 2).host is None
    with pytest.raises(InvalidSize, match="num_host_blocks=-1"):
        BlockPool(4, 2, num_host_blocks=-1)


def test_a_prefix_comes_back_after_its_blocks_were_reused() -> None:
    pool, host = two_tiers()
    serve(pool, [1, 2, 3, 4, 5])
    save_all(host)
    serve(pool, [6, 7, 8, 9, 10, 11, 12, 13])  # takes every block of the device
    assert BlockTable(pool).match([1, 2, 3, 4, 5]) == []
    table = BlockTable(pool)
    assert table.adopt([1, 2, 3, 4, 5]) == 4
    assert table.arrival == host.num_issued == host.num_done + 2
    assert [swap.to_host for swap in host.take()] == [False, False]
    host.finish(host.num_issued)
    assert host.num_loads == 2 and host.arrival(table.block_ids[0]) == 0
    table.release()
    pool.check()
    assert pool.num_free == 4


def test_a_prefix_is_put_together_from_both_tiers() -> None:
    pool, host = two_tiers(num_blocks=6)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    serve(pool, tokens)
    save_all(host)
    middle = BlockTable(pool).match(tokens)[1]
    pool.forget(middle)
    table = BlockTable(pool)
    assert table.adopt(tokens) == 6
    assert [swap.to_host for swap in host.take()] == [False]
    assert host.num_loads == 1 and table.arrival == host.num_issued


def test_a_second_table_shares_blocks_on_their_way_and_waits_too() -> None:
    pool, host = two_tiers()
    serve(pool, [1, 2, 3])
    save_all(host)
    serve(pool, list(range(10, 18)))
    first, second = BlockTable(pool), BlockTable(pool)
    assert first.adopt([1, 2, 3]) == second.adopt([1, 2, 3]) == 2
    assert first.block_ids == second.block_ids and first.arrival == second.arrival > 0
    assert host.num_loads == 1
    assert first.share(2).arrival == first.arrival


def test_a_block_in_a_swap_is_not_free() -> None:
    pool, host = two_tiers()
    serve(pool, [1, 2])
    host.save()
    assert pool.num_free == 3
    (swap,) = host.take()
    assert swap.to_host and pool.num_references(swap.block) == 1
    with pytest.raises(OutOfBlocks):
        pool.allocate(4)
    host.finish(1)
    assert pool.num_free == 4


def test_a_load_outlives_its_table() -> None:
    pool, host = two_tiers()
    serve(pool, [1, 2, 3])
    save_all(host)
    serve(pool, list(range(10, 18)))
    table = BlockTable(pool)
    table.adopt([1, 2, 3])
    (block,) = table.block_ids
    table.release()
    assert pool.num_references(block) == 1 and pool.num_free == 3
    host.take()
    host.finish(host.num_issued)
    assert pool.num_free == 4 and BlockTable(pool).match([1, 2, 3]) == [block]


def test_swaps_are_done_in_the_order_of_issue_and_not_before_they_are_taken() -> None:
    pool, host = two_tiers(num_blocks=32, num_host_blocks=32)
    serve(pool, list(range(12)))
    host.save()
    assert host.num_issued == 4  # an eighth of the pool
    with pytest.raises(AssertionError, match="I20"):
        host.finish(1)
    assert len(host.take()) == 4
    host.finish(3)
    host.finish(2)  # an older report changes nothing
    assert host.num_done == 3 and host.num_under_way == 1


def test_a_take_is_bounded_unless_more_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wllm_cache.host.MAX_SWAPS", 3)
    pool, host = two_tiers(num_blocks=80, num_host_blocks=80)
    serve(pool, list(range(20)))
    host.save()
    assert host.num_issued == 10
    assert len(host.take()) == 3
    assert len(host.take(8)) == 5
    assert len(host.take()) == 2 and host.take() == ()


def test_few_blocks_wait_for_others_before_they_are_saved() -> None:
    pool, host = two_tiers(num_blocks=64)
    serve(pool, [1, 2, 3, 4, 5, 6])
    host.save()
    assert host.num_issued == 0
    serve(pool, [7, 8])
    host.save()
    assert host.num_issued == 4


def test_the_host_forgets_the_longest_unused_and_the_end_of_a_prefix_first() -> None:
    pool, host = two_tiers(num_blocks=8, num_host_blocks=3)
    serve(pool, [1, 2, 3, 4])
    save_all(host)
    serve(pool, [5, 6])
    save_all(host)
    serve(pool, [1, 2])  # used again
    serve(pool, [7, 8])
    save_all(host)
    assert host.num_used == 3
    for block in range(8):
        pool.forget(block)
    found = {tuple(tokens): BlockTable(pool).adopt([*tokens, 0]) for tokens in ([1, 2], [5, 6], [7, 8], [1, 2, 3, 4])}
    assert found[1, 2] == 2 and found[7, 8] == 2 and found[5, 6] == 2
    assert found[1, 2, 3, 4] == 2


def test_a_host_block_in_a_swap_keeps_its_content() -> None:
    pool, host = two_tiers(num_blocks=16, num_host_blocks=1)
    serve(pool, [1, 2])
    save_all(host)
    for block in range(16):
        pool.forget(block)
    table = BlockTable(pool)
    assert table.adopt([1, 2, 3]) == 2  # under way
    serve(pool, [4, 5])
    host.save()
    assert [swap.to_host for swap in host.take()] == [False]
    host.finish(host.num_issued)
    host.save()
    assert [swap.to_host for swap in host.take()] == [True]


def test_distrust_and_reset_reach_the_host() -> None:
    pool, host = two_tiers(num_blocks=8)
    table = BlockTable(pool)
    table.grow(4)
    table.seal([1, 2, 3, 4])
    host.save()
    table.forget()
    table.release()
    assert host.num_used == 0 and host.num_under_way == 1
    pool.check()
    host.take()
    host.finish(1)
    pool.check()
    serve(pool, [5, 6])
    save_all(host)
    assert host.num_used == 1
    serve(pool, [7, 8])
    pool.reset()
    save_all(host)
    assert host.num_used == 0 and BlockTable(pool).adopt([5, 6, 7]) == 0


class Model:
    """Plays both memories and the copies between them, which run late and in any order within a direction."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.size = rng.randint(1, 3)
        self.pool = BlockPool(rng.randint(4, 24), self.size, num_host_blocks=rng.choice([1, 2, 8, 64]))
        assert self.pool.host is not None
        self.host = self.pool.host
        self.device_memory: dict[int, Content] = {}
        self.host_memory: dict[int, Content] = {}
        self.swaps: list[BlockSwap] = []
        self.num_run = 0
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.loads = self.refused = 0

    def run_swaps(self, count: int) -> None:
        for block, host_block, to_host in self.swaps[:count]:
            if to_host:
                self.host_memory[host_block] = self.device_memory[block]
            else:
                self.device_memory[block] = self.host_memory[host_block]
        del self.swaps[:count]
        self.num_run += count
        self.host.finish(self.num_run)

    def admit(self) -> None:
        tokens = [self.rng.randrange(2) for _ in range(self.rng.randint(1, 12))]
        table = BlockTable(self.pool)
        hit = table.adopt(tokens)
        self.swaps += self.host.take(table.arrival)
        self.run_swaps(max(table.arrival - self.num_run, 0))
        for index, block in enumerate(table.block_ids):
            assert self.device_memory[block] == (b"", tuple(tokens[: (index + 1) * self.size])), "a wrong block"
        try:
            table.grow(len(tokens))
        except OutOfBlocks:
            self.refused += 1
            table.release()
            return
        for index in range(hit // self.size, len(table.block_ids)):
            block = table.block_ids[index]
            assert all(block != swap.block for swap in self.swaps), "I20: written in a swap"
            self.device_memory[block] = (b"", tuple(tokens[: (index + 1) * self.size]))
        table.seal(tokens)
        self.tables.append((table, tokens))

    def step(self) -> None:
        self.host.save()
        self.swaps += self.host.take()
        if self.rng.random() < 0.5:
            self.admit()
        elif self.tables:
            self.tables.pop(self.rng.randrange(len(self.tables)))[0].release()
        if self.rng.random() < 0.3:
            self.run_swaps(self.rng.randint(0, len(self.swaps)))
        self.pool.check()


def test_random_tables_over_two_tiers_read_the_exact_prefix() -> None:
    saves = loads = refused = 0
    for seed in range(60):
        print("seed", seed)
        model = Model(Random(seed))
        for _ in range(250):
            model.step()
        model.run_swaps(len(model.swaps))
        for table, _ in model.tables:
            table.release()
        model.pool.check()
        assert model.pool.num_free == model.pool.num_blocks
        saves, loads, refused = saves + model.host.num_saves, loads + model.host.num_loads, refused + model.refused
    print(saves, loads, refused)
    assert min(saves, loads, refused) > 500, (saves, loads, refused)

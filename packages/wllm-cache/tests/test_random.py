"""Random tables on small pools against a model that stores what each block holds, as a list of all tokens so far."""

from __future__ import annotations

from random import Random

from wllm_cache import BlockPool, BlockTable, OutOfBlocks


class Model:
    """Plays the device: what is written in each block, and in which order blocks became free."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.size = rng.randint(1, 4)
        self.pool = BlockPool(rng.randint(2, 12), self.size)
        self.content: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        self.tables: list[tuple[BlockTable, list[int], bytes]] = []
        self.hits = self.evictions = self.forks = self.refused = 0

    def write(self, table: BlockTable, tokens: list[int], salt: bytes, start: int) -> None:
        for index in range(start // self.size, len(table.block_ids)):
            block = table.block_ids[index]
            end = min((index + 1) * self.size, len(tokens))
            if block in self.content and self.content[block] != (salt, tuple(tokens[:end])):
                self.evictions += 1
            self.content[block] = (salt, tuple(tokens[:end]))

    def admit(self) -> None:
        salt = self.rng.choice([b"", b"a"])
        tokens = [self.rng.randrange(2) for _ in range(self.rng.randint(1, 16))]
        table = BlockTable(self.pool)
        hit = table.adopt(tokens, salt)
        assert hit < len(tokens) and hit % self.size == 0
        for index, block in enumerate(table.block_ids):
            assert self.content[block] == (salt, tuple(tokens[: (index + 1) * self.size])), "a wrong block was hit"
        self.hits += hit > 0
        self.extend(table, tokens, salt, hit)

    def extend(self, table: BlockTable, tokens: list[int], salt: bytes, start: int) -> None:
        try:
            table.grow(len(tokens))
        except OutOfBlocks:
            self.refused += 1
            table.release()
            return
        self.write(table, tokens, salt, start)
        table.seal(tokens)
        self.tables.append((table, tokens, salt))

    def step(self) -> None:
        action = self.rng.choice(["admit", "admit", "append", "fork", "release", "release"])
        if action == "admit":
            self.admit()
        elif self.tables:
            table, tokens, salt = self.tables.pop(self.rng.randrange(len(self.tables)))
            if action == "append":
                more = [*tokens, *(self.rng.randrange(2) for _ in range(self.rng.randint(1, 3)))]
                self.extend(table, more, salt, len(tokens))
            elif action == "fork":
                self.tables.append((table, tokens, salt))
                self.fork(table, tokens, salt)
            else:
                table.release()

    def fork(self, table: BlockTable, tokens: list[int], salt: bytes) -> None:
        length = self.rng.randint(1, len(tokens))
        try:
            child, source = table.fork(length)
        except OutOfBlocks:
            self.refused += 1
            return
        self.forks += 1
        if source is not None:
            self.content[child.block_ids[-1]] = self.content[source]
        self.extend(child, [*tokens[:length], 1], salt, length)


def test_every_hit_has_the_exact_prefix() -> None:
    hits = evictions = forks = refused = 0
    for seed in range(80):
        print("seed", seed)
        model = Model(Random(seed))
        for _ in range(250):
            model.step()
            model.pool.check()
        for table, _, _ in model.tables:
            table.release()
        model.pool.check()
        assert model.pool.num_free == model.pool.num_blocks
        hits, evictions = hits + model.hits, evictions + model.evictions
        forks, refused = forks + model.forks, refused + model.refused
    assert min(hits, evictions, forks, refused) > 500, (hits, evictions, forks, refused)

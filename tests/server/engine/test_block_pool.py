import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.engine.block_pool import BlockPool

BLOCK_COUNT = 12
keys = st.integers(0, 7).map(lambda i: bytes([i]))


class Pool(RuleBasedStateMachine):
    """Random allocations, shares, publications and releases, against a plain model of what each block holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCK_COUNT, block_size=4)
        self.tables: list[list[int]] = []
        self.contents: dict[int, bytes] = {}

    @property
    def held(self) -> set[int]:
        return {block_id for table in self.tables for block_id in table}

    @rule(count=st.integers(0, BLOCK_COUNT + 2))
    def allocate(self, count: int) -> None:
        available = BLOCK_COUNT - len(self.held)
        if count > available:
            with pytest.raises(ValueError, match=f"{count} KV blocks wanted, {available} available"):
                self.pool.allocate(count)
            return
        table = self.pool.allocate(count)
        assert len(set(table) - self.held) == count
        for block_id in table:
            self.contents.pop(block_id, None)
        self.tables.append(table)

    @precondition(lambda self: any(self.tables))
    @rule(key=keys, data=st.data())
    def publish(self, key: bytes, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.publish(block_id, key)
        if block_id not in self.contents and key not in self.contents.values():
            self.contents[block_id] = key

    @rule(wanted=st.lists(keys, max_size=3, unique=True))
    def find_and_share(self, wanted: list[bytes]) -> None:
        found = self.pool.find(wanted)
        assert [self.contents[block_id] for block_id in found] == wanted[: len(found)]
        if len(found) < len(wanted):
            assert wanted[len(found)] not in self.contents.values()
        assert self.pool.unheld_count(found) == len(set(found) - self.held)
        self.pool.share(found)
        self.tables.append(found)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @invariant()
    def every_block_is_free_or_cached_or_held(self) -> None:
        self.pool.check_integrity(self.tables)
        assert self.pool.used_count == len(self.held)
        assert self.pool.cached_count == len(self.contents.keys() - self.held)
        assert self.pool.available_count + self.pool.used_count == BLOCK_COUNT


TestPool = Pool.TestCase


def test_releasing_a_block_that_is_not_in_use_is_an_error() -> None:
    pool = BlockPool(4, 4)
    with pytest.raises(KeyError):
        pool.release([2])


def test_the_integrity_check_notices_a_leak_and_a_block_held_twice() -> None:
    pool = BlockPool(4, 4)
    table = pool.allocate(2)
    for tables in ([], [table, table]):
        with pytest.raises(AssertionError, match="not those that sequences hold"):
            pool.check_integrity(tables)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert BlockPool(4, 4).blocks_for(tokens) == blocks


def test_free_blocks_go_before_cached_ones_and_the_least_recently_used_of_those_first() -> None:
    pool = BlockPool(4, 4)
    old, new = pool.allocate(1), pool.allocate(1)
    pool.publish(old[0], b"old")
    pool.publish(new[0], b"new")
    pool.release(old)
    pool.release(new)
    pool.allocate(2)
    assert pool.cached_count == 2
    pool.allocate(1)
    assert pool.find([b"old"]) == []
    assert pool.find([b"new"]) == new


def test_a_forgotten_block_is_found_no_more_and_is_free_when_released() -> None:
    pool = BlockPool(2, 4)
    table = pool.allocate(1)
    pool.publish(table[0], b"key")
    pool.forget(table)
    assert pool.find([b"key"]) == []
    pool.release(table)
    assert pool.cached_count == 0
    pool.check_integrity([])


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(2, 4)
    table = pool.allocate(2)
    pool.publish(table[0], b"beginning")
    pool.publish(table[1], b"end")
    pool.release(table)
    pool.allocate(1)
    assert pool.find([b"beginning", b"end"]) == table[:1]

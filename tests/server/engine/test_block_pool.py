import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.engine.block_pool import BlockPool

BLOCK_COUNT = 12


class Pool(RuleBasedStateMachine):
    """Random allocations and releases against a plain list of what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCK_COUNT, block_size=4)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, BLOCK_COUNT + 2))
    def allocate(self, count: int) -> None:
        free = BLOCK_COUNT - sum(map(len, self.tables))
        if count > free:
            with pytest.raises(ValueError, match=f"{count} KV blocks wanted, {free} free"):
                self.pool.allocate(count)
        else:
            table = self.pool.allocate(count)
            assert len(table) == count
            self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)

    @invariant()
    def every_block_is_free_or_held_once(self) -> None:
        self.pool.check_integrity(self.tables)
        assert self.pool.used_count == sum(map(len, self.tables))
        assert self.pool.free_count + self.pool.used_count == BLOCK_COUNT


TestPool = Pool.TestCase


def test_releasing_a_block_that_is_not_in_use_is_an_error() -> None:
    pool = BlockPool(4, 4)
    with pytest.raises(KeyError):
        pool.release([2])


def test_the_integrity_check_notices_a_leak_and_a_shared_block() -> None:
    pool = BlockPool(4, 4)
    table = pool.allocate(2)
    with pytest.raises(AssertionError, match="not those that sequences hold"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="held twice"):
        pool.check_integrity([table, table])


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert BlockPool(4, 4).blocks_for(tokens) == blocks

"""The BlockPool: which blocks of the KV cache are free, and which are in use."""

from collections.abc import Iterable


class BlockPool:
    """Hands out the ids of fixed-size KV blocks; the model holds their contents.

    Sizes are in blocks, but for `block_size`, the tokens in each.
    """

    def __init__(self, block_count: int, block_size: int) -> None:
        self.block_count, self.block_size = block_count, block_size
        self._free = list(range(block_count - 1, -1, -1))
        self._used: set[int] = set()

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def used_count(self) -> int:
        return len(self._used)

    def blocks_for(self, token_count: int) -> int:
        """How many blocks hold this many tokens."""
        return -(-token_count // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks. Raises ValueError, and takes none, where fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} KV blocks wanted, {len(self._free)} free")
        taken = [self._free.pop() for _ in range(count)]
        self._used.update(taken)
        return taken

    def release(self, block_ids: Iterable[int]) -> None:
        """Gives blocks back. Raises KeyError where one is not in use."""
        for block_id in block_ids:
            self._used.remove(block_id)
            self._free.append(block_id)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises AssertionError unless free + used = all, and the used blocks are exactly those of these tables."""
        held = [block_id for table in tables for block_id in table]
        assert len(held) == len(set(held)), "a KV block is held twice"
        assert set(held) == self._used, "the KV blocks in use are not those that sequences hold"
        assert sorted([*self._free, *self._used]) == list(range(self.block_count)), "a KV block is lost or doubled"

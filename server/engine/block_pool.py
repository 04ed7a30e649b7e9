"""The BlockPool: which blocks of the KV cache are in use, by how many, and which hold a prefix worth keeping."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Hands out the ids of fixed-size KV blocks; the model holds their contents.

    A block is in use (by one or more holders), cached (by nobody, its contents known by a key) or free. Blocks are
    taken from the free first, then from the cached, least recently used first. Sizes are in blocks, but for
    `block_size`, the tokens in each.
    """

    def __init__(self, block_count: int, block_size: int) -> None:
        self.block_count, self.block_size = block_count, block_size
        self._free = list(range(block_count - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._holders: dict[int, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def available_count(self) -> int:
        """Blocks that `allocate` can hand out."""
        return len(self._free) + len(self._cached)

    @property
    def cached_count(self) -> int:
        return len(self._cached)

    @property
    def used_count(self) -> int:
        return len(self._holders)

    def blocks_for(self, token_count: int) -> int:
        """How many blocks hold this many tokens."""
        return -(-token_count // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks for one holder. Raises ValueError, and takes none, where fewer are available."""
        if count > self.available_count:
            raise ValueError(f"{count} KV blocks wanted, {self.available_count} available")
        return [self._allocate_one() for _ in range(count)]

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks that hold the contents with these keys, up to the first that none holds."""
        found = []
        for key in keys:
            if (block_id := self._block_of.get(key)) is None:
                break
            found.append(block_id)
        return found

    def unheld_count(self, block_ids: Iterable[int]) -> int:
        """How many of these are cached: sharing them leaves as many fewer available."""
        return sum(block_id in self._cached for block_id in block_ids)

    def held_by_these_alone(self, tables: Iterable[Iterable[int]]) -> set[int]:
        """The blocks that nobody would hold if the holders of these tables gave them back."""
        held = Counter(block_id for table in tables for block_id in table)
        return {block_id for block_id, count in held.items() if count == self._holders[block_id]}

    def share(self, block_ids: Iterable[int]) -> None:
        """Takes blocks that `find` has found, for one more holder."""
        for block_id in block_ids:
            self._cached.pop(block_id, None)
            self._holders[block_id] = self._holders.get(block_id, 0) + 1

    def publish(self, block_id: int, key: bytes) -> None:
        """Lets others find a block in use by its contents; where another block has them already, that one is found."""
        if key not in self._block_of and block_id not in self._key_of:
            self._block_of[key] = block_id
            self._key_of[block_id] = key

    def forget(self, block_ids: Iterable[int]) -> None:
        """Lets nobody else find these blocks in use by their contents, which are not to be relied on."""
        for block_id in block_ids:
            if (key := self._key_of.pop(block_id, None)) is not None:
                del self._block_of[key]

    def release(self, block_ids: Sequence[int]) -> None:
        """Gives one holder's blocks back, in the order of its tokens. Raises KeyError where one is not in use.

        The last become the least recently used, so that a prefix outlives what follows it.
        """
        for block_id in reversed(block_ids):
            self._holders[block_id] -= 1
            if not self._holders[block_id]:
                del self._holders[block_id]
                if block_id in self._key_of:
                    self._cached[block_id] = None
                else:
                    self._free.append(block_id)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises AssertionError unless free + cached + used = all, and the used are held by just these tables."""
        held = Counter(block_id for table in tables for block_id in table)
        assert held == self._holders, "the KV blocks in use are not those that sequences hold"
        everywhere = sorted([*self._free, *self._cached, *self._holders])
        assert everywhere == list(range(self.block_count)), "a KV block is lost or doubled"
        assert {key: block_id for block_id, key in self._key_of.items()} == self._block_of, "a key names another block"
        assert self._cached.keys() <= self._key_of.keys(), "a cached KV block has no key"

    def _allocate_one(self) -> int:
        if self._free:
            block_id = self._free.pop()
        else:
            block_id, _ = self._cached.popitem(last=False)
            del self._block_of[self._key_of.pop(block_id)]
        self._holders[block_id] = 1
        return block_id

"""Prefix sharing: which blocks of a sequence's beginning others hold already, and which they are about to."""

from collections.abc import Callable, Iterable

from server.engine.block_pool import BlockPool
from server.engine.sequence import Sequence
from server.engine.waiting_line import Turn


class PrefixSharing:
    """Over the blocks of one pool. Where sharing is off, no block is ever found, and none is on its way."""

    def __init__(self, pool: BlockPool, is_on: bool) -> None:
        self._pool, self.is_on = pool, is_on

    def find(self, seq: Sequence) -> list[int]:
        """Blocks that hold a beginning of the known tokens."""
        return self._pool.find(self._shareable_keys(seq))

    def next_key(self, seq: Sequence) -> bytes | None:
        """Of the first block that the sequence could share if another held it."""
        keys = self._shareable_keys(seq)
        found = len(self._pool.find(keys))
        return keys[found] if found < len(keys) else None

    def coming_keys(self, seq: Sequence) -> list[bytes]:
        """Of the blocks that the running sequence is about to fill with known tokens."""
        if not self.is_on or seq.pending_count <= 1:
            return []
        size = self._pool.block_size
        return seq.block_keys(len(seq.token_ids) // size)[seq.computed // size :]

    def publish(self, seq: Sequence, computed_before: int) -> None:
        """Lets others find the blocks that have become full of computed tokens."""
        size = self._pool.block_size
        first, full = computed_before // size, seq.computed // size
        if self.is_on and full > first:
            for i, key in enumerate(seq.block_keys(full)[first:], start=first):
                self._pool.publish(seq.block_ids[i], key)

    def _shareable_keys(self, seq: Sequence) -> list[bytes]:
        return seq.block_keys(seq.shareable_count // self._pool.block_size) if self.is_on else []


class ComingBlocks:
    """The blocks that running sequences are about to compute, each by the first in turn that does."""

    def __init__(self, sharing: PrefixSharing, turn: Callable[[Sequence], Turn], running: Iterable[Sequence]) -> None:
        self._sharing, self._turn = sharing, turn
        self._turn_of_key: dict[bytes, Turn] = {}
        for seq in running:
            self.note(seq)

    def note(self, seq: Sequence) -> None:
        turn = self._turn(seq)
        for key in self._sharing.coming_keys(seq):
            self._turn_of_key[key] = min(turn, self._turn_of_key.get(key, turn))

    def are_awaited_by(self, seq: Sequence) -> bool:
        """Whether the next block of the waiting sequence is being computed by one that comes before it.

        It waits for no later one, which others in between could hold up.
        """
        key = self._sharing.next_key(seq)
        return key is not None and key in self._turn_of_key and self._turn_of_key[key] < self._turn(seq)

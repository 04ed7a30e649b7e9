"""The WaitingLine: sequences without a slot, in the order in which they are to be admitted."""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from server.engine.sequence import Sequence

Turn = tuple[float, int]
"""Sorts sequences in the order of the line."""


class WaitingLine:
    """First come, first served, where a point of priority is worth `aging` seconds of waiting.

    All who wait grow older alike, so the order of any two never changes, and one who waits long enough comes before
    any newcomer, whatever its priority.
    """

    def __init__(self, aging: float) -> None:
        """Raises ValueError where `aging` is not a time."""
        if not 0 <= aging < math.inf:
            raise ValueError(f"aging is {aging:g} s: must be at least 0 s, and finite")
        self._aging = aging
        self._sequences: list[Sequence] = []

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """In order. Any may be removed meanwhile; one that is added is met where its turn is still to come."""
        index = 0
        while index < len(self._sequences):
            seq = self._sequences[index]
            yield seq
            is_where_it_was = index < len(self._sequences) and self._sequences[index] is seq
            index = index + 1 if is_where_it_was else bisect_right(self._sequences, self.turn(seq), key=self.turn)

    def turn(self, seq: Sequence) -> Turn:
        """Of a sequence, waiting or not."""
        request = seq.request
        return request.arrived_at - request.priority * self._aging, request.number

    def add(self, seq: Sequence) -> None:
        insort(self._sequences, seq, key=self.turn)

    def remove(self, seq: Sequence) -> None:
        index = bisect_left(self._sequences, self.turn(seq), key=self.turn)
        assert self._sequences[index] is seq
        del self._sequences[index]

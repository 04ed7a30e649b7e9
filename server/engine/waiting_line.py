"""The WaitingLine: sequences without a slot, in the order in which they are to be admitted."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from server.engine.sequence import Sequence


class WaitingLine:
    """First come, first served, where a point of priority is worth `aging` seconds of waiting.

    All who wait grow older alike, so the order of any two never changes, and one who waits long enough comes before
    any newcomer, whatever its priority.
    """

    def __init__(self, aging: float) -> None:
        self._aging = aging
        self._sequences: list[Sequence] = []

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """In order. Those that are removed meanwhile are met all the same."""
        return iter(tuple(self._sequences))

    def turn(self, seq: Sequence) -> tuple[float, int]:
        """Sorts sequences, waiting or not, in the order of the line."""
        request = seq.request
        return request.arrived_at - request.priority * self._aging, request.number

    def add(self, seq: Sequence) -> None:
        insort(self._sequences, seq, key=self.turn)

    def remove(self, seq: Sequence) -> None:
        index = bisect_left(self._sequences, self.turn(seq), key=self.turn)
        assert self._sequences[index] is seq
        del self._sequences[index]

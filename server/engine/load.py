"""The Load: how busy the engine is, as a snapshot that any thread may read."""

from collections import deque
from dataclasses import dataclass

WINDOW = 10.0
"""Seconds over which the speed is measured."""


@dataclass(frozen=True, slots=True)
class Load:
    running: int
    waiting: int
    slots: int
    kv_blocks_used: int
    kv_blocks_cached: int
    """Blocks that nobody uses and that hold a prefix a coming request may share."""
    kv_blocks_total: int
    kv_block_size: int
    tokens_per_second: float
    """Tokens generated a second, over the last ten seconds."""
    tokens_generated: int
    """Since the start."""
    since: float
    """When the engine became ready, in seconds since the epoch."""


class Throughput:
    """Counts generated tokens, in total and over the last WINDOW seconds.

    One thread adds; any thread reads, and changes nothing by it.
    """

    def __init__(self) -> None:
        self.total = 0
        self._seconds: deque[tuple[int, int]] = deque()  # (second of the clock, tokens in it), at most WINDOW + 1

    def add(self, count: int, now: float) -> None:
        self.total += count
        if self._seconds and self._seconds[-1][0] == int(now):
            count += self._seconds.pop()[1]
        self._seconds.append((int(now), count))
        while self._seconds[0][0] <= now - WINDOW:
            self._seconds.popleft()

    def per_second(self, now: float) -> float:
        counts = tuple(self._seconds)  # in one go: iterating would meet the other thread's changes
        # Not those after `now` either, which the other thread may have added since.
        return sum(count for second, count in counts if now - WINDOW < second <= now) / WINDOW

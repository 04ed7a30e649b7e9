"""The Histogram: how often a value fell into each of some fixed ranges."""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    bounds: tuple[float, ...]
    """Upper bounds of the ranges, rising, each inclusive; a last range has none."""
    counts: tuple[int, ...]
    """One more than there are bounds."""
    total: float
    """The sum of the values."""


class Histogram:
    """One thread observes, in less than a microsecond; any thread reads."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._total)

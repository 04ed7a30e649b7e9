"""Markers: fixed texts such as <think> that may be cut anywhere as they come."""

from dataclasses import dataclass
from enum import Enum, auto


class Match(Enum):
    NONE = auto()
    # The text ends before it can be told.
    PARTIAL = auto()
    WHOLE = auto()


@dataclass(frozen=True, slots=True)
class Search:
    """Text before `end` has no part of the marker; what begins there is the marker if `found`, else perhaps its
    beginning."""

    end: int
    found: bool


def match_at(marker: str, text: str, start: int) -> Match:
    """Says whether the marker stands at `start`."""
    candidate = text[start : start + len(marker)]
    if candidate == marker:
        return Match.WHOLE
    return Match.PARTIAL if marker.startswith(candidate) else Match.NONE


def search(marker: str, text: str, start: int) -> Search:
    """Looks for the first marker from `start` on."""
    found = text.find(marker, start)
    if found >= 0:
        return Search(found, found=True)
    longest = max(start, len(text) - len(marker) + 1)
    ends = (end for end in range(longest, len(text)) if marker.startswith(text[end:]))
    return Search(next(ends, len(text)), found=False)

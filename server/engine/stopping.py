"""The StopMatcher: finds a stop sequence in text that comes in pieces, and leaks no part of one."""


class StopMatcher:
    """Text goes in by `push`; what comes out can be no part of a stop sequence any more.

    Held back is only the longest end of the text that is a proper prefix of a stop sequence. The first stop sequence
    to be complete matches; of those complete at the same character, the longest.
    """

    def __init__(self, stop: tuple[str, ...], include_stop_text: bool) -> None:
        self._stop = sorted(stop, key=len, reverse=True)
        self._include_stop_text = include_stop_text
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, may_match: bool) -> str:
        """Returns the text that is certain to be output; after a match, the last of it.

        Without `may_match` a stop sequence that becomes complete is ordinary text.
        """
        if not self._stop:
            return text
        buffer, seen = self._held + text, len(self._held)
        if may_match and self._find_match(buffer, seen):
            return self._cut(buffer)
        keep = self._held_back(buffer)
        self._held = buffer[keep:]
        return buffer[:keep]

    def flush(self) -> str:
        """Returns what was held back, when no text will follow."""
        held, self._held = self._held, ""
        return held

    def _find_match(self, buffer: str, seen: int) -> bool:
        """Sets `matched`, looking only at ends past the `seen` characters that were looked at before."""
        ends = [(end, stop) for stop in self._stop if (end := self._first_end(buffer, stop, seen)) is not None]
        if not ends:
            return False
        self._end, self.matched = min(ends, key=lambda found: found[0])
        return True

    @staticmethod
    def _first_end(buffer: str, stop: str, seen: int) -> int | None:
        start = buffer.find(stop, max(0, seen - len(stop) + 1))
        return None if start < 0 else start + len(stop)

    def _cut(self, buffer: str) -> str:
        assert self.matched is not None
        self._held = ""
        return buffer[: self._end if self._include_stop_text else self._end - len(self.matched)]

    def _held_back(self, buffer: str) -> int:
        """Where the longest end of `buffer` that is a proper prefix of a stop sequence begins."""
        longest = self._stop[0]
        for start in range(max(0, len(buffer) - len(longest) + 1), len(buffer)):
            end = buffer[start:]
            if any(len(end) < len(stop) and stop.startswith(end) for stop in self._stop):
                return start
        return len(buffer)

"""Tool calls as Hermes and Qwen write them."""

from server.parsing import marker
from server.parsing.call_object import CallObjectReader
from server.parsing.json_scanner import WHITESPACE, Progress
from server.parsing.marked_text import MarkedTextReader
from server.parsing.marker import Match
from server.parsing.open_call import CallIdentities, OpenCall
from server.parsing.parts import Content

BEGIN = "<tool_call>"
END = "</tool_call>"
_ARGUMENT_KEYS = frozenset({"arguments"})


class HermesReader(MarkedTextReader):
    """Reads `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere in the answer and any number of times.

    A call is complete with its object; whitespace after the object is dropped, and so is the end marker, which may be
    missing. A marker that no call follows is content, and so is what comes after the point where a call breaks; there
    the search for the next marker goes on.
    """

    def __init__(self, identities: CallIdentities) -> None:
        super().__init__()
        self._identities = identities
        self._call: OpenCall | None = None

    def _begin(self, text: str, position: int) -> int:
        found = marker.search(BEGIN, text, position)
        self._give(Content(text[position : found.end]))
        if not found.found:
            return self._hold(text, found.end)
        self._call = OpenCall(BEGIN, CallObjectReader(_ARGUMENT_KEYS), self._identities)
        self._state = self._read_call
        return found.end + len(BEGIN)

    def _read_call(self, text: str, position: int) -> int:
        assert self._call is not None
        step = self._call.read(text, position)
        self._parts += step.parts
        if self._call.progress is not Progress.READING:
            self._state = self._read_end if self._call.progress is Progress.FINISHED else self._begin
            self._call = None
        return step.end

    def _read_end(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            return position + 1
        match = marker.match_at(END, text, position)
        if match is Match.PARTIAL:
            return self._hold(text, position)
        self._state = self._begin
        return position + len(END) if match is Match.WHOLE else position

    def _finish(self, held: str) -> None:
        if self._call is not None:
            self._parts += self._call.flush()
        self._give(Content(held))

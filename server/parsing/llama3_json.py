"""Tool calls as Llama 3 writes them."""

from server.parsing import marker
from server.parsing.call_object import CallObjectReader
from server.parsing.json_scanner import WHITESPACE, Progress
from server.parsing.marked_text import MarkedTextReader
from server.parsing.marker import Match
from server.parsing.open_call import CallIdentities, OpenCall
from server.parsing.parts import Content

PYTHON_TAG = "<|python_tag|>"
SEPARATOR = ";"
_ARGUMENT_KEYS = frozenset({"parameters", "arguments"})


class Llama3JsonReader(MarkedTextReader):
    """Reads an answer that is `{"name": ..., "parameters": {...}}`, or several of them parted by semicolons, after an
    optional <|python_tag|>; "arguments" may stand for "parameters".

    An answer that begins otherwise is content. So is an object that is no call, and all that follows it or the point
    where a call breaks. Whitespace after a call's object is dropped.
    """

    def __init__(self, identities: CallIdentities) -> None:
        super().__init__()
        self._identities = identities
        self._opening: list[str] = []
        self._call: OpenCall | None = None

    def _begin(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            self._opening.append(text[position])
            return position + 1
        match = marker.match_at(PYTHON_TAG, text, position)
        if match is Match.PARTIAL:
            return self._hold(text, position)
        self._state = self._before_object
        if match is Match.NONE:
            return position
        self._opening.append(PYTHON_TAG)
        return position + len(PYTHON_TAG)

    def _before_object(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            self._opening.append(text[position])
            return position + 1
        opening = self._take_opening()
        if text[position] == "{":
            self._call = OpenCall(opening, CallObjectReader(_ARGUMENT_KEYS), self._identities)
            self._state = self._read_call
        else:
            self._give(Content(opening))
            self._state = self._read_content
        return position

    def _read_call(self, text: str, position: int) -> int:
        assert self._call is not None
        step = self._call.read(text, position)
        self._parts += step.parts
        if self._call.progress is not Progress.READING:
            finished = self._call.progress is Progress.FINISHED
            self._state = self._after_object if finished else self._read_content
            self._call = None
        return step.end

    def _after_object(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            return position + 1
        if text[position] != SEPARATOR:
            self._state = self._read_content
            return position
        self._opening.append(SEPARATOR)
        self._state = self._before_object
        return position + 1

    def _read_content(self, text: str, position: int) -> int:
        self._give(Content(text[position:]))
        return len(text)

    def _finish(self, held: str) -> None:
        self._give(Content(self._take_opening()))
        if self._call is not None:
            self._parts += self._call.flush()
        self._give(Content(held))

    def _take_opening(self) -> str:
        opening = "".join(self._opening)
        self._opening.clear()
        return opening

"""Tool calls as Mistral's models write them."""

from server.parsing import marker
from server.parsing.call_object import CallObjectReader
from server.parsing.json_scanner import WHITESPACE, Progress
from server.parsing.marked_text import MarkedTextReader
from server.parsing.named_call import NAME_CHARACTERS, NamedCallReader
from server.parsing.open_call import CallIdentities, OpenCall
from server.parsing.parts import Content

TOOL_CALLS = "[TOOL_CALLS]"
_ARGUMENT_KEYS = frozenset({"arguments"})


class MistralReader(MarkedTextReader):
    """Reads `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and `[TOOL_CALLS]name{...}` as NamedCallReader
    says, anywhere in the answer and any number of times.

    A marker that no call follows is content, and so is what comes after the point where a call or the list breaks;
    there the search for the next marker goes on. Whitespace after a call's object in a list is dropped.
    """

    def __init__(self, identities: CallIdentities) -> None:
        super().__init__()
        self._identities = identities
        self._opening: list[str] = []
        self._call: OpenCall | None = None
        self._in_list = False

    def _begin(self, text: str, position: int) -> int:
        found = marker.search(TOOL_CALLS, text, position)
        self._give(Content(text[position : found.end]))
        if not found.found:
            return self._hold(text, found.end)
        self._opening.append(TOOL_CALLS)
        self._state = self._after_marker
        return found.end + len(TOOL_CALLS)

    def _after_marker(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            return self._open(text[position], position)
        if text[position] == "[":
            self._state = self._before_object
            return self._open("[", position)
        if text[position] in NAME_CHARACTERS:
            self._in_list = False
            self._call = OpenCall(self._take_opening(), NamedCallReader(), self._identities)
            self._state = self._read_call
            return position
        return self._give_up(position)

    def _before_object(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            return self._open(text[position], position)
        if text[position] != "{":
            return self._give_up(position)
        self._in_list = True
        self._call = OpenCall(self._take_opening(), CallObjectReader(_ARGUMENT_KEYS), self._identities)
        self._state = self._read_call
        return position

    def _read_call(self, text: str, position: int) -> int:
        assert self._call is not None
        step = self._call.read(text, position)
        self._parts += step.parts
        if self._call.progress is not Progress.READING:
            list_goes_on = self._in_list and self._call.progress is Progress.FINISHED
            self._state = self._after_object if list_goes_on else self._begin
            self._call = None
        return step.end

    def _after_object(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            return position + 1
        if text[position] == ",":
            self._state = self._before_object
            return self._open(",", position)
        self._state = self._begin
        return position + 1 if text[position] == "]" else position

    def _finish(self, held: str) -> None:
        self._give(Content(self._take_opening()))
        if self._call is not None:
            self._parts += self._call.flush()
        self._give(Content(held))

    def _open(self, character: str, position: int) -> int:
        """Takes a character that belongs to a call, should one follow."""
        self._opening.append(character)
        return position + 1

    def _give_up(self, position: int) -> int:
        self._give(Content(self._take_opening()))
        self._state = self._begin
        return position

    def _take_opening(self) -> str:
        opening = "".join(self._opening)
        self._opening.clear()
        return opening

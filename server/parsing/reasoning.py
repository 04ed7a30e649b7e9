"""Reasoning, as Qwen3 and DeepSeek-R1 write it."""

from server.parsing import marker
from server.parsing.marked_text import MarkedTextReader
from server.parsing.marker import Match
from server.parsing.parts import Content, Reasoning

BEGIN = "<think>"
END = "</think>"


class ReasoningReader(MarkedTextReader):
    """Parts the reasoning from the content: one <think>...</think> at the start of the output, after whitespace or not.

    The first </think> ends the reasoning, whatever stands in it. All that follows is content, markers too: an answer
    may speak of <think> and does not become reasoning by it. Output that begins otherwise is content. Reasoning that
    has no end goes on to the end of the output.

    Where the prompt has opened the reasoning, the output begins inside it; a <think> at its start is then passed over,
    as models that were trained to write it do.
    """

    def __init__(self, begins_in_reasoning: bool) -> None:
        super().__init__()
        self._begins_in_reasoning = begins_in_reasoning
        self._opening: list[str] = []

    def _begin(self, text: str, position: int) -> int:
        if text[position].isspace():
            self._opening.append(text[position])
            return position + 1
        match = marker.match_at(BEGIN, text, position)
        if match is Match.PARTIAL:
            return self._hold(text, position)
        if match is Match.WHOLE:
            self._opening.clear()
            self._state = self._read_reasoning
            return position + len(BEGIN)
        self._give_opening("")
        self._state = self._read_reasoning if self._begins_in_reasoning else self._read_content
        return position

    def _read_reasoning(self, text: str, position: int) -> int:
        found = marker.search(END, text, position)
        self._give(Reasoning(text[position : found.end]))
        if not found.found:
            return self._hold(text, found.end)
        self._state = self._read_content
        return found.end + len(END)

    def _read_content(self, text: str, position: int) -> int:
        self._give(Content(text[position:]))
        return len(text)

    def _finish(self, held: str) -> None:
        if self._state == self._read_reasoning:
            self._give(Reasoning(held))
        else:
            self._give_opening(held)

    def _give_opening(self, held: str) -> None:
        opening = "".join(self._opening) + held
        self._opening.clear()
        self._give(Reasoning(opening) if self._begins_in_reasoning else Content(opening))

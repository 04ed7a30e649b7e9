"""The MarkedTextReader: what the readers of text with markers in it have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from server.parsing.parts import Content, Part, Reasoning


class MarkedTextReader(ABC):
    """Goes through the text from state to state.

    A state is a method that takes the text and a position, reads on from there, and returns where it stopped. It sets
    the state that follows. An end of the text that may be the beginning of a marker is held, and read again with what
    comes next; as it is shorter than a marker, reading n characters takes time proportional to n however they are cut.
    """

    def __init__(self) -> None:
        self._state: Callable[[str, int], int] = self._begin
        self._held = ""
        self._parts: list[Part] = []

    def push(self, text: str) -> list[Part]:
        """Returns the parts that are certain now; neighbours may belong together."""
        text, position = self._held + text, 0
        self._held = ""
        while position < len(text):
            position = self._state(text, position)
        return self._take_parts()

    def flush(self) -> list[Part]:
        """Returns the rest when no text will follow."""
        self._finish(self._held)
        self._held = ""
        return self._take_parts()

    @abstractmethod
    def _begin(self, text: str, position: int) -> int:
        """The first state."""

    @abstractmethod
    def _finish(self, held: str) -> None:
        """Gives what is unfinished, of which `held` is the last."""

    def _hold(self, text: str, position: int) -> int:
        self._held = text[position:]
        return len(text)

    def _give(self, part: Content | Reasoning) -> None:
        if part.text:
            self._parts.append(part)

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

"""The CallObjectReader: a tool call that is written as a JSON object with the members name and arguments."""

import json
from enum import Enum, auto

from server.parsing.json_scanner import WHITESPACE, JsonScanner, Progress


class _Expected(Enum):
    OBJECT = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA_OR_END = auto()


class _Role(Enum):
    KEY = auto()
    NAME = auto()
    ARGUMENTS = auto()
    OTHER = auto()


class CallObjectReader:
    """A CallReader for `{"name": "f", "arguments": {...}}`; its members may come in any order, others are passed over.

    The object is broken where its name is no string or empty, where its arguments are no object, and where either
    comes twice or is missing.
    """

    def __init__(self, argument_keys: frozenset[str]) -> None:
        """`argument_keys`: the keys under which the arguments may stand."""
        self.progress = Progress.READING
        self._argument_keys = argument_keys
        self._expected = _Expected.OBJECT
        self._role = _Role.KEY
        self._scanner: JsonScanner | None = None
        self._string: list[str] = []
        self._key = ""
        self._name: str | None = None
        self._arguments_begun = False
        self._arguments: list[str] = []

    @property
    def name(self) -> str | None:
        return self._name if self._arguments_begun else None

    def take_arguments(self) -> str:
        arguments = "".join(self._arguments)
        self._arguments.clear()
        return arguments

    def read(self, text: str, start: int) -> int:
        position = start
        while position < len(text) and self.progress is Progress.READING:
            if self._scanner is not None:
                position = self._scan(self._scanner, text, position)
            elif text[position] in WHITESPACE or self._take(text[position]):
                position += 1
            elif self._scanner is None:
                self.progress = Progress.BROKEN
        return position

    def _take(self, character: str) -> bool:
        """Takes a character between keys and values; False where it has not been consumed: it begins one or breaks."""
        match self._expected:
            case _Expected.OBJECT if character == "{":
                self._expected = _Expected.KEY_OR_END
                return True
            case _Expected.KEY | _Expected.KEY_OR_END if character == '"':
                self._begin(_Role.KEY)
            case _Expected.COLON if character == ":":
                self._expected = _Expected.VALUE
                return True
            case _Expected.VALUE:
                self._begin_value(character)
            case _Expected.COMMA_OR_END if character == ",":
                self._expected = _Expected.KEY
                return True
            case _Expected.COMMA_OR_END if character == "}" and self.name is not None:
                self.progress = Progress.FINISHED
                return True
        return False

    def _begin_value(self, character: str) -> None:
        if self._key == "name":
            if character == '"' and self._name is None:
                self._begin(_Role.NAME)
        elif self._key in self._argument_keys:
            if character == "{" and not self._arguments_begun:
                self._arguments_begun = True
                self._begin(_Role.ARGUMENTS)
        else:
            self._begin(_Role.OTHER)

    def _begin(self, role: _Role) -> None:
        self._role = role
        self._scanner = JsonScanner()
        self._string = []

    def _scan(self, scanner: JsonScanner, text: str, position: int) -> int:
        end = scanner.read(text, position)
        if self._role is _Role.ARGUMENTS:
            self._arguments.append(text[position:end])
        elif self._role is not _Role.OTHER:
            self._string.append(text[position:end])
        if scanner.progress is Progress.BROKEN:
            self.progress = Progress.BROKEN
        elif scanner.progress is Progress.FINISHED:
            self._end()
        return end

    def _end(self) -> None:
        self._scanner = None
        self._expected = _Expected.COMMA_OR_END
        if self._role is _Role.KEY:
            self._key = json.loads("".join(self._string))
            self._expected = _Expected.COLON
        elif self._role is _Role.NAME:
            self._set_name(json.loads("".join(self._string)))

    def _set_name(self, name: str) -> None:
        if name and not _has_surrogate(name):
            self._name = name
        else:
            self.progress = Progress.BROKEN


def _has_surrogate(text: str) -> bool:
    """An escape such as \\ud800 by itself is JSON, but no character that UTF-8 can carry."""
    return any("\ud800" <= character <= "\udfff" for character in text)

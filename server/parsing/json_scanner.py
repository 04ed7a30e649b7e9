"""The JsonScanner: tells where a JSON value ends, and where a text stops being one, as the text comes."""

import re
from collections.abc import Callable
from enum import Enum, auto

WHITESPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER_CHARACTERS = re.compile(r"[-+.eE0-9]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_ESCAPES = '"\\/bfnrtu'
_HEX_DIGITS = "0123456789abcdefABCDEF"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_CLOSING = {"{": "}", "[": "]"}


class Progress(Enum):
    READING = auto()
    # The value is whole.
    FINISHED = auto()
    # The next character cannot be part of it.
    BROKEN = auto()


class _Expected(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class JsonScanner:
    """Reads one JSON value by RFC 8259, each character once; it keeps only brackets that are open and a number's text.

    NaN, infinities and control characters in strings are not JSON.
    """

    def __init__(self) -> None:
        self.progress = Progress.READING
        self._expected = _Expected.VALUE
        self._closing: list[str] = []
        self._token: Callable[[str, int], int] | None = None
        self._string_is_key = False
        self._hex_digits_left = 0
        self._number: list[str] = []
        self._literal_left = ""

    def read(self, text: str, start: int) -> int:
        """Reads on from `start` and returns where it stopped: at the end of the text, after the value, or at the
        character that breaks it; `progress` says which."""
        position = start
        while position < len(text) and self.progress is Progress.READING:
            if self._token is not None:
                position = self._token(text, position)
            elif text[position] in WHITESPACE or self._take(text[position]):
                position += 1
            elif self._token is None:
                self.progress = Progress.BROKEN
        return position

    def _take(self, character: str) -> bool:
        """Takes a character between tokens; False where it has not been consumed: it begins a token or breaks."""
        match self._expected:
            case _Expected.COLON if character == ":":
                self._expected = _Expected.VALUE
                return True
            case _Expected.COMMA_OR_END if character == ",":
                self._expected = _Expected.KEY if self._closing[-1] == "}" else _Expected.VALUE
                return True
            case _Expected.COMMA_OR_END | _Expected.KEY_OR_END | _Expected.VALUE_OR_END if self._closes(character):
                self._closing.pop()
                self._end_value()
                return True
            case _Expected.KEY | _Expected.KEY_OR_END if character == '"':
                self._string_is_key = True
                self._token = self._read_string
                return True
            case _Expected.VALUE | _Expected.VALUE_OR_END:
                return self._begin_value(character)
        return False

    def _closes(self, character: str) -> bool:
        return character == self._closing[-1]

    def _begin_value(self, character: str) -> bool:
        if character in _CLOSING:
            self._closing.append(_CLOSING[character])
            self._expected = _Expected.KEY_OR_END if character == "{" else _Expected.VALUE_OR_END
            return True
        if character == '"':
            self._string_is_key = False
            self._token = self._read_string
            return True
        if character in _LITERALS:
            self._literal_left = _LITERALS[character]
            self._token = self._read_literal
        elif character in "-0123456789":
            self._number = []
            self._token = self._read_number
        return False

    def _end_value(self) -> None:
        self._token = None
        self._expected = _Expected.COMMA_OR_END
        if not self._closing:
            self.progress = Progress.FINISHED

    def _read_string(self, text: str, position: int) -> int:
        plain = _PLAIN.match(text, position)
        assert plain is not None
        position = plain.end()
        if position == len(text):
            return position
        if text[position] == "\\":
            self._token = self._read_escape
        elif text[position] != '"':
            self.progress = Progress.BROKEN
            return position
        elif self._string_is_key:
            self._token = None
            self._expected = _Expected.COLON
        else:
            self._end_value()
        return position + 1

    def _read_escape(self, text: str, position: int) -> int:
        if text[position] not in _ESCAPES:
            self.progress = Progress.BROKEN
            return position
        self._hex_digits_left = 4 if text[position] == "u" else 0
        self._token = self._read_hex_digit if self._hex_digits_left else self._read_string
        return position + 1

    def _read_hex_digit(self, text: str, position: int) -> int:
        if text[position] not in _HEX_DIGITS:
            self.progress = Progress.BROKEN
            return position
        self._hex_digits_left -= 1
        if not self._hex_digits_left:
            self._token = self._read_string
        return position + 1

    def _read_number(self, text: str, position: int) -> int:
        characters = _NUMBER_CHARACTERS.match(text, position)
        assert characters is not None
        self._number.append(characters.group())
        if characters.end() < len(text):
            if _NUMBER.fullmatch("".join(self._number)):
                self._end_value()
            else:
                self.progress = Progress.BROKEN
        return characters.end()

    def _read_literal(self, text: str, position: int) -> int:
        if text[position] != self._literal_left[0]:
            self.progress = Progress.BROKEN
            return position
        self._literal_left = self._literal_left[1:]
        if not self._literal_left:
            self._end_value()
        return position + 1

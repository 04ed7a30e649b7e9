"""The NamedCallReader: a tool call that is written as a name with its arguments right after it."""

import string
from collections.abc import Callable

from server.parsing.json_scanner import JsonScanner, Progress

CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"
MAX_NAME_CHARACTERS = 64
MAX_ID_CHARACTERS = 64
NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_-.")
_ID_CHARACTERS = frozenset(string.ascii_letters + string.digits)


class NamedCallReader:
    """A CallReader for `name{...}`, `name[ARGS]{...}` and `name[CALL_ID]id[ARGS]{...}`, as Mistral's models write calls
    since version 11 of its tokenizer. The id in it is passed over.
    """

    def __init__(self) -> None:
        self.progress = Progress.READING
        # Returns False where it cannot take the character.
        self._take: Callable[[str], bool] = self._take_name
        self._written_name = ""
        self._written_id = ""
        self._tag = ""
        self._scanner: JsonScanner | None = None
        self._arguments: list[str] = []

    @property
    def name(self) -> str | None:
        return self._written_name if self._scanner is not None else None

    def take_arguments(self) -> str:
        arguments = "".join(self._arguments)
        self._arguments.clear()
        return arguments

    def read(self, text: str, start: int) -> int:
        position = start
        while self._scanner is None:
            if position == len(text):
                return position
            if text[position] == "{" and self._may_begin_arguments():
                self._scanner = JsonScanner()
            elif self._take(text[position]):
                position += 1
            else:
                self.progress = Progress.BROKEN
                return position
        end = self._scanner.read(text, position)
        self._arguments.append(text[position:end])
        self.progress = self._scanner.progress
        return end

    def _may_begin_arguments(self) -> bool:
        return self._tag == ARGS or (bool(self._written_name) and not self._tag)

    def _take_name(self, character: str) -> bool:
        if character == "[" and self._written_name:
            self._take = self._take_tag
            return self._take_tag(character)
        self._written_name += character
        return character in NAME_CHARACTERS and len(self._written_name) <= MAX_NAME_CHARACTERS

    def _take_tag(self, character: str) -> bool:
        self._tag += character
        if self._tag == CALL_ID:
            self._take = self._take_id
        return CALL_ID.startswith(self._tag) or ARGS.startswith(self._tag)

    def _take_id(self, character: str) -> bool:
        if character == "[" and self._written_id:
            self._tag = ""
            self._take = self._take_args_tag
            return self._take_args_tag(character)
        self._written_id += character
        return character in _ID_CHARACTERS and len(self._written_id) <= MAX_ID_CHARACTERS

    def _take_args_tag(self, character: str) -> bool:
        self._tag += character
        return ARGS.startswith(self._tag)

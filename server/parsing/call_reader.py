"""The CallReader: what reads one tool call's name and arguments, in whichever way its format writes them."""

from typing import Protocol

from server.parsing.json_scanner import Progress


class CallReader(Protocol):
    @property
    def progress(self) -> Progress:
        """FINISHED when the call is whole: it has a name, and arguments that are a JSON object."""
        ...

    @property
    def name(self) -> str | None:
        """The function's name, once it is known and the arguments have begun: then it is a call."""
        ...

    def read(self, text: str, start: int) -> int:
        """Reads on from `start` and returns where it stopped, as JsonScanner.read."""
        ...

    def take_arguments(self) -> str:
        """Returns the text of the arguments that was read and not taken yet."""
        ...

"""The OpenCall: a tool call that is being written, and the parts it gives."""

from collections.abc import Callable
from dataclasses import dataclass

from server.parsing.call_reader import CallReader
from server.parsing.json_scanner import Progress
from server.parsing.parts import Content, Part, ToolCallPart


@dataclass(frozen=True, slots=True)
class CallIdentity:
    # Which call of the generation it is; 0 is the first.
    call: int
    id: str


class CallIdentities:
    """Numbers the calls of a generation."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._count = 0

    def next(self) -> CallIdentity:
        identity = CallIdentity(self._count, self._new_call_id())
        self._count += 1
        return identity


@dataclass(frozen=True, slots=True)
class CallStep:
    # Where reading stopped.
    end: int
    parts: list[Part]


class OpenCall:
    """Gives no part before the name is known and the arguments have begun; until then it may turn out to be no call,
    and its text is kept to be given back as it was written.

    What has been given is not taken back: a call that breaks later has no complete part.
    """

    def __init__(self, opening: str, reader: CallReader, identities: CallIdentities) -> None:
        """`opening`: the text before the call that belongs to it."""
        self._written = [opening]
        self._reader = reader
        self._identities = identities
        self._identity: CallIdentity | None = None

    @property
    def progress(self) -> Progress:
        return self._reader.progress

    def read(self, text: str, start: int) -> CallStep:
        """Reads on from `start`, to where the call ends or breaks, or to the end of the text."""
        end = self._reader.read(text, start)
        parts: list[Part] = []
        if self._identity is None:
            self._written.append(text[start:end])
            if self._reader.name is None:
                return CallStep(end, self.flush() if self.progress is Progress.BROKEN else [])
            self._written.clear()
            self._identity = self._identities.next()
            parts.append(ToolCallPart(self._identity.call, self._identity.id, self._reader.name))
        arguments, complete = self._reader.take_arguments(), self.progress is Progress.FINISHED
        if arguments or complete:
            parts.append(ToolCallPart(self._identity.call, arguments_json=arguments, complete=complete))
        return CallStep(end, parts)

    def flush(self) -> list[Part]:
        """Returns the text of what has not become a call, when no more of it will follow."""
        return [Content("".join(self._written))] if self._identity is None else []

"""How far a stream has come: the part of reading one that needs no transport."""

from treadle import from_wire
from treadle.errors import IncompleteStream
from treadle.events import Event, Result, Started
from treadle.v1 import generation_pb2 as pb


class Progress:
    """What a stream of `n` generations has told so far."""

    def __init__(self, n: int) -> None:
        self.has_begun = False
        self.n = n
        self._started: dict[int, Started] = {}
        self._results: dict[int, Result] = {}

    @property
    def started(self) -> Started | None:
        """Of the first generation."""
        return self._started.get(0)

    @property
    def is_complete(self) -> bool:
        return all(index in self._results for index in range(self.n))

    def hear(self, message: pb.GenerateResponse) -> Event | None:
        """The message as an event; None for one of a kind that this client does not know."""
        self.has_begun = True
        event = from_wire.event(message)
        match event:
            case Started():
                self._started[event.index] = event
            case Result():
                self._results[event.index] = event
        return event

    def check_complete(self) -> None:
        """Raises IncompleteStream unless every generation's Result has been heard."""
        if self.is_complete:
            return
        found = "without a result" if self.n == 1 else f"with {len(self._results)} of {self.n} results"
        request_id = next((started.request_id for started in self._started.values()), None)
        raise IncompleteStream(f"the stream ended OK {found}", request_id=request_id)

    def check_single(self, what: str, instead: str) -> None:
        """Raises RuntimeError where there are several generations."""
        if self.n > 1:
            raise RuntimeError(f"the stream has {self.n} generations, and `{what}` is for one: use {instead}")

    def results(self) -> tuple[Result, ...]:
        """By index. Raises RuntimeError before the end."""
        if not self.is_complete:
            raise RuntimeError("the stream has no result yet: read it to its end first")
        return tuple(self._results[index] for index in range(self.n))

"""How far a stream has come: the part of reading one that needs no transport."""

from treadle import from_wire
from treadle.errors import IncompleteStream
from treadle.events import Event, Result, Started
from treadle.v1 import generation_pb2 as pb


class Progress:
    """What a stream has told so far."""

    def __init__(self) -> None:
        self.has_begun = False
        self.started: Started | None = None
        self.result: Result | None = None

    def hear(self, message: pb.GenerateResponse) -> Event | None:
        """The message as an event; None for one of a kind that this client does not know."""
        self.has_begun = True
        event = from_wire.event(message)
        match event:
            case Started():
                self.started = event
            case Result():
                self.result = event
        return event

    def check_complete(self) -> None:
        """Raises IncompleteStream unless the Result has been heard."""
        if self.result is None:
            request_id = None if self.started is None else self.started.request_id
            raise IncompleteStream("the stream ended OK without a result", request_id=request_id)

    def final(self) -> Result:
        if self.result is None:
            raise RuntimeError("the stream has no result yet: read it to its end first")
        return self.result

"""A generation as it comes, for `Client`."""

import threading
from collections.abc import Callable, Iterator
from typing import Protocol, Self

import grpc

from treadle.errors import Cancelled
from treadle.events import Event, Result, Started, Tokens
from treadle.progress import Progress
from treadle.retry import Attempts
from treadle.statuses import error_from
from treadle.v1 import generation_pb2 as pb


class ResponseCall(Protocol):
    """What gRPC gives for a call that streams its answer."""

    def __iter__(self) -> Iterator[pb.GenerateResponse]: ...
    def cancel(self) -> bool: ...


class GenerationStream:
    """The events of one request, read once: with `for event in stream` or `for piece in stream.text()`.

    The server works from the moment of the call. Leaving the loop by `break` or an exception, leaving the `with` block,
    `cancel()` and dropping the stream all end the server's work. The loop raises TreadleError where the stream ends by
    an error, and IncompleteStream where it ends without the Result of every
    generation.
    """

    def __init__(self, start: Callable[[float | None], ResponseCall], attempts: Attempts, n: int) -> None:
        self._start, self._attempts = start, attempts
        self._progress = Progress(n)
        self._is_read = False
        self._cancelled = threading.Event()
        self._call = start(attempts.begin())

    @property
    def n(self) -> int:
        """How many generations it has."""
        return self._progress.n

    @property
    def started(self) -> Started | None:
        """None until the request is admitted. Of several generations the first one's."""
        return self._progress.started

    @property
    def result(self) -> Result:
        """How the generation ended. Raises RuntimeError before the end, and where there are several generations."""
        self._progress.check_single("result", "`results`")
        return self._progress.results()[0]

    @property
    def results(self) -> tuple[Result, ...]:
        """How each generation ended, by index. Raises RuntimeError before the end of all of them."""
        return self._progress.results()

    def cancel(self) -> None:
        """Ends the server's work, from any thread; who reads the stream gets Cancelled. Does nothing after the end."""
        self._cancelled.set()
        self._call.cancel()

    def text(self) -> Iterator[str]:
        """The text, piece by piece. Raises RuntimeError where there are several generations."""
        self._progress.check_single("text()", "the events and their `index`")
        return self._text()

    def __iter__(self) -> Iterator[Event]:
        """Not the stream itself, so that leaving the loop drops what is iterated, and with it the server's work."""
        if self._is_read:
            raise RuntimeError("the stream has been read already: keep its events, or the iterator, to go on later")
        self._is_read = True
        return self._events()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_call"):  # not where starting it failed
            self.cancel()

    def _text(self) -> Iterator[str]:
        for event in self:
            if isinstance(event, Tokens) and event.text:
                yield event.text

    def _events(self) -> Iterator[Event]:
        try:
            while not self._progress.is_complete:
                yield from self._attempt()
        finally:
            self.cancel()

    def _attempt(self) -> Iterator[Event]:
        """Reads the call to its end, or starts another where it failed and may be retried."""
        try:
            for message in self._call:
                event = self._progress.hear(message)
                if event is not None:
                    yield event
            self._progress.check_complete()
        except grpc.RpcError as error:
            failure = error_from(error)
            if self._progress.has_begun:
                raise failure from error
            pause = self._attempts.pause_after(failure)
            self._restart_after(pause)

    def _restart_after(self, pause: float) -> None:
        if not self._cancelled.wait(pause):
            self._call = self._start(self._attempts.begin())
        if self._cancelled.is_set():
            self._call.cancel()
            raise Cancelled("the call was cancelled here", code="CANCELLED")

"""A generation as it comes, for `AsyncClient`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, Self

import grpc

from treadle import aio_cancellation
from treadle.events import Event, Result, Started, Tokens
from treadle.progress import Progress
from treadle.retry import Attempts
from treadle.statuses import error_from
from treadle.v1 import generation_pb2 as pb


class ResponseCall(Protocol):
    """What gRPC gives for a call that streams its answer."""

    def __aiter__(self) -> AsyncIterator[pb.GenerateResponse]: ...
    def cancel(self) -> bool: ...


class AsyncGenerationStream:
    """The events of one request, read once: `async for event in stream` or `async for piece in stream.text()`.

    The server works from the moment of the call. The sure way to end its work early is `async with`, which ends it
    where the block is left. Leaving the loop by `break` or an exception ends it too, but only when the interpreter
    drops the iterator: CPython does so at once, where nothing else holds it. So do cancelling the task that reads, and
    `cancel()`. The loop raises TreadleError where the stream ends by an error, and IncompleteStream where it ends
    without the Result of every generation.
    """

    def __init__(self, start: Callable[[float | None], ResponseCall], attempts: Attempts, n: int) -> None:
        self._start, self._attempts = start, attempts
        self._progress = Progress(n)
        self._is_read = False
        self._cancelled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
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
        """Ends the server's work; who reads the stream gets Cancelled. Does nothing after the end."""
        self._cancelled.set()
        self._call.cancel()

    def text(self) -> AsyncIterator[str]:
        """The text, piece by piece. Raises RuntimeError where there are several generations."""
        self._progress.check_single("text()", "the events and their `index`")
        return self._text()

    def __aiter__(self) -> AsyncIterator[Event]:
        """Not the stream itself, so that leaving the loop drops what is iterated, and with it the server's work."""
        if self._is_read:
            raise RuntimeError("the stream has been read already: keep its events, or the iterator, to go on later")
        self._is_read = True
        return self._events()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        """May run on any thread, and after the loop."""
        if hasattr(self, "_call") and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call.cancel)

    async def _text(self) -> AsyncIterator[str]:
        async for event in self:
            if isinstance(event, Tokens) and event.text:
                yield event.text

    async def _events(self) -> AsyncIterator[Event]:
        try:
            while not self._progress.is_complete:
                async for event in self._attempt():
                    yield event
        finally:
            self.cancel()

    async def _attempt(self) -> AsyncIterator[Event]:
        """Reads the call to its end, or starts another where it failed and may be retried."""
        try:
            async for message in self._call:
                event = self._progress.hear(message)
                if event is not None:
                    yield event
            self._progress.check_complete()
        except asyncio.CancelledError as error:
            if aio_cancellation.is_of_the_task():
                raise
            raise aio_cancellation.of_the_call() from error
        except grpc.RpcError as error:
            failure = error_from(error)
            if self._progress.has_begun:
                raise failure from error
            await self._restart_after(self._attempts.pause_after(failure))

    async def _restart_after(self, pause: float) -> None:
        try:
            await asyncio.wait_for(self._cancelled.wait(), pause)
        except TimeoutError:
            self._call = self._start(self._attempts.begin())
        else:
            raise aio_cancellation.of_the_call()

"""The ResultStream: one request's events on their way from the scheduler to its client."""

import asyncio
from collections.abc import AsyncIterator

from server.engine.events import Event, Failure, Result, Started, Tokens
from server.engine.request import Request


class ResultStream(AsyncIterator[Event]):
    """Lives on the event loop: the engine puts events, one reader iterates over them.

    Tokens that come while nobody reads are joined into one event, so the stream holds at most one Started, one Tokens
    and one end. The iteration ends after the Result or the Failure.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._started: Started | None = None
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self._end: Result | Failure | None = None
        self._exhausted = False
        self._arrived = asyncio.Event()

    @property
    def unread_token_count(self) -> int:
        return len(self._token_ids)

    def put(self, event: Event) -> None:
        """Takes the next event; one that comes after the end is dropped."""
        if self._end is not None:
            return
        match event:
            case Started():
                self._started = event
            case Tokens():
                self._token_ids += event.token_ids
                self._text.append(event.text)
            case Result() | Failure():
                self._end = event
        self._arrived.set()

    async def __anext__(self) -> Event:
        if self._exhausted:
            raise StopAsyncIteration
        await self._arrived.wait()
        event = self._take()
        if not (self._token_ids or self._text or self._end):
            self._arrived.clear()
        return event

    def _take(self) -> Event:
        if self._started is not None:
            event, self._started = self._started, None
            return event
        if self._token_ids or self._text:
            tokens = Tokens(tuple(self._token_ids), "".join(self._text))
            self._token_ids, self._text = [], []
            return tokens
        assert self._end is not None
        self._exhausted = True
        return self._end

"""The ResultStream: the events of one call's generations on their way from the scheduler to their client."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from server.engine.events import Event, Failure, PromptLogprobs, Result, Started, Tokens
from server.engine.plan import TokenLogprob
from server.engine.request import Request


@dataclass(frozen=True, slots=True)
class GenerationEvent:
    index: int
    """Which of the call's generations it is of, in the order of their requests."""
    event: Event


class ResultStream(AsyncIterator[GenerationEvent]):
    """Lives on the event loop: the engine puts events, one reader iterates over them.

    A generation's tokens that come while nobody reads are joined into one event, so the stream holds at most four
    events of each: Started, PromptLogprobs, Tokens and the end. With a `chunk_interval`, a generation's Tokens come at
    least that many seconds apart, but for the last of them. The iteration ends after every generation's Result, or
    after the first Failure.
    """

    def __init__(self, requests: Sequence[Request], chunk_interval: float = 0.0) -> None:
        self.requests = tuple(requests)
        self._chunk_interval = chunk_interval
        self._open = {request.number: _Unread(index) for index, request in enumerate(requests)}
        self._put_numbers = set(self._open)
        self._arrived = asyncio.Event()
        self.failure: Failure | None = None
        """Of the first generation that failed, from the moment it is put."""
        self._failed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def claimed_id(self) -> str | None:
        """The request id, where the client claims it for this call alone."""
        first = self.requests[0]
        return first.id if first.is_id_claimed else None

    @property
    def unended_numbers(self) -> frozenset[int]:
        """The requests whose end has not been put."""
        return frozenset(self._put_numbers)

    @property
    def unread_token_count(self) -> int:
        """Tokens that have come since the reader could have taken some, and has not."""
        return sum(unread.overdue_count for unread in self._open.values())

    def put(self, number: int, event: Event) -> None:
        """Takes the next event of the request with this number; one that comes after the end is dropped."""
        if number not in self._put_numbers:
            return
        if isinstance(event, Result | Failure):
            self._put_numbers.remove(number)
        if isinstance(event, Failure) and self.failure is None:
            self.failure = event
            self._failed.set()
        if number in self._open:  # not where another's failure has ended the iteration
            self._open[number].put(event, self._loop.time())
            self._arrived.set()

    async def wait_for_failure(self) -> Failure:
        """Returns when a generation has failed, which the reader may not have heard yet."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    async def __anext__(self) -> GenerationEvent:
        while self._open:
            event = self._take()
            if event is not None:
                return event
            await self._wait()
        raise StopAsyncIteration

    def _take(self) -> GenerationEvent | None:
        """What can be had now, of the generation that was served longest ago."""
        for number, unread in self._open.items():
            event = unread.take(self._loop.time())
            if event is None:
                continue
            del self._open[number]
            if isinstance(event, Failure):
                self._open.clear()
            elif not isinstance(event, Result):
                self._open[number] = unread
                if isinstance(event, Tokens):
                    unread.due_at = self._loop.time() + self._chunk_interval
            return GenerationEvent(unread.index, event)
        return None

    async def _wait(self) -> None:
        """Until something is put, or tokens that are there are due."""
        self._arrived.clear()
        held_until = min((unread.due_at for unread in self._open.values() if unread.has_tokens), default=None)
        try:
            async with asyncio.timeout_at(held_until):
                await self._arrived.wait()
        except TimeoutError:
            pass


class _Unread:
    """What the reader has not taken yet of one generation."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.due_at = 0.0
        """When the reader gets the next tokens, on the event loop's clock."""
        self.overdue_count = 0
        """Tokens that came after that."""
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._first: list[Started | PromptLogprobs] = []
        self._end: Result | Failure | None = None

    @property
    def has_tokens(self) -> bool:
        return bool(self._token_ids or self._text)

    def put(self, event: Event, now: float) -> None:
        match event:
            case Started() | PromptLogprobs():
                self._first.append(event)
            case Tokens():
                self._put_tokens(event, now)
            case Result() | Failure():
                self._end = event

    def _put_tokens(self, tokens: Tokens, now: float) -> None:
        self._token_ids += tokens.token_ids
        self._text.append(tokens.text)
        self._logprobs += tokens.logprobs
        if now >= self.due_at:
            self.overdue_count += len(tokens.token_ids)

    def take(self, now: float) -> Event | None:
        if self._first:
            return self._first.pop(0)
        if not self.has_tokens:
            return self._end
        if now < self.due_at and self._end is None:
            return None
        return self._take_tokens()

    def _take_tokens(self) -> Tokens:
        tokens = Tokens(tuple(self._token_ids), "".join(self._text), tuple(self._logprobs))
        self._token_ids, self._text, self._logprobs, self.overdue_count = [], [], [], 0
        return tokens

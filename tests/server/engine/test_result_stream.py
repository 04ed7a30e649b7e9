import asyncio

import pytest

from server.engine.errors import StepFailed
from server.engine.events import Failure, Finish, FinishReason, Result, Started, Timing, Tokens, Usage
from server.engine.result_stream import ResultStream
from tests.server.engine.driver import request

STARTED = Started(1, 2, 0)
RESULT = Result(Finish(FinishReason.MAX_NEW_TOKENS), Usage(2, 3, 0), Timing(0.0, 0.0, 0.0, 0.0))


async def test_tokens_that_nobody_read_are_joined_into_one() -> None:
    stream = ResultStream(request())
    for event in (STARTED, Tokens((1,), "a"), Tokens((2,), ""), Tokens((), "b"), RESULT):
        stream.put(event)
    assert [event async for event in stream] == [STARTED, Tokens((1, 2), "ab"), RESULT]


async def test_a_reader_gets_each_event_as_it_comes() -> None:
    stream, seen = ResultStream(request()), []

    async def read() -> None:
        async for event in stream:
            seen.append(event)

    reader = asyncio.create_task(read())
    for event in (STARTED, Tokens((1,), "a"), Tokens((2,), "b"), RESULT):
        stream.put(event)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await reader
    assert seen == [STARTED, Tokens((1,), "a"), Tokens((2,), "b"), RESULT]


async def test_nothing_comes_after_the_end() -> None:
    stream = ResultStream(request())
    failure = Failure(StepFailed("x"))
    for event in (failure, Tokens((1,), "a"), RESULT):
        stream.put(event)
    assert [event async for event in stream] == [failure]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_unread_tokens_are_counted() -> None:
    stream = ResultStream(request())
    stream.put(Tokens((1, 2), "a"))
    stream.put(Tokens((3,), "b"))
    assert stream.unread_token_count == 3
    await anext(stream)
    assert stream.unread_token_count == 0

import asyncio

import pytest

from server.engine.errors import StepFailed
from server.engine.events import (
    Event,
    Failure,
    Finish,
    FinishReason,
    Result,
    Started,
    Timing,
    Tokens,
    Usage,
)
from server.engine.result_stream import GenerationEvent, ResultStream
from tests.server.engine.driver import request

STARTED = Started(1, 2, 0)
RESULT = Result(Finish(FinishReason.MAX_NEW_TOKENS), Usage(2, 3, 0), Timing(0.0, 0.0, 0.0, 0.0))


def put_all(stream: ResultStream, index: int, *events: Event) -> None:
    for event in events:
        stream.put(stream.requests[index].number, event)


async def events_of(stream: ResultStream, index: int = 0) -> list[Event]:
    return [heard.event async for heard in stream if heard.index == index]


async def test_tokens_that_nobody_read_are_joined_into_one() -> None:
    stream = ResultStream([request()])
    put_all(stream, 0, STARTED, Tokens((1,), "a"), Tokens((2,), ""), Tokens((), "b"), RESULT)
    assert await events_of(stream) == [STARTED, Tokens((1, 2), "ab"), RESULT]


async def test_a_reader_gets_each_event_as_it_comes() -> None:
    stream = ResultStream([request()])
    seen: list[Event] = []

    async def read() -> None:
        async for heard in stream:
            seen.append(heard.event)

    reader = asyncio.create_task(read())
    for event in (STARTED, Tokens((1,), "a"), Tokens((2,), "b"), RESULT):
        put_all(stream, 0, event)
        for _ in range(5):
            await asyncio.sleep(0)
    await reader
    assert seen == [STARTED, Tokens((1,), "a"), Tokens((2,), "b"), RESULT]


async def test_nothing_comes_after_the_end() -> None:
    stream = ResultStream([request()])
    failure = Failure(StepFailed("x"))
    put_all(stream, 0, failure, Tokens((1,), "a"), RESULT)
    assert await events_of(stream) == [failure]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_unread_tokens_are_counted() -> None:
    stream = ResultStream([request(), request()])
    put_all(stream, 0, Tokens((1, 2), "a"), Tokens((3,), "b"))
    put_all(stream, 1, Tokens((4,), "c"))
    assert stream.unread_token_count == 4
    await anext(stream)
    await anext(stream)
    assert stream.unread_token_count == 0


async def test_the_stream_of_several_generations_ends_after_the_last_result() -> None:
    stream = ResultStream([request(), request(), request()])
    put_all(stream, 1, STARTED, RESULT)
    put_all(stream, 0, STARTED, Tokens((1,), "a"))
    put_all(stream, 2, STARTED, RESULT)
    heard = [await anext(stream) for _ in range(6)]
    assert stream.unended_numbers == {stream.requests[0].number}
    put_all(stream, 0, Tokens((2,), "b"), RESULT)
    heard += [event async for event in stream]
    assert heard[-1] == GenerationEvent(0, RESULT)
    assert [e.event for e in heard if e.index == 0] == [STARTED, Tokens((1,), "a"), Tokens((2,), "b"), RESULT]
    assert [e.event for e in heard if e.index == 1] == [STARTED, RESULT]


async def test_a_generation_with_much_to_read_does_not_hold_up_another_s_events() -> None:
    stream = ResultStream([request(), request()])
    put_all(stream, 0, STARTED, Tokens((1,), "a"), RESULT)
    put_all(stream, 1, STARTED, Tokens((2,), "b"), RESULT)
    assert [heard.index async for heard in stream] == [0, 1, 0, 1, 0, 1]


async def test_a_failure_of_one_generation_ends_the_stream_of_all() -> None:
    stream = ResultStream([request(), request()])
    failure = Failure(StepFailed("x"))
    put_all(stream, 0, STARTED)
    put_all(stream, 1, failure)
    assert [heard async for heard in stream] == [GenerationEvent(0, STARTED), GenerationEvent(1, failure)]
    put_all(stream, 0, Tokens((1,), "a"), RESULT)
    assert [heard async for heard in stream] == []


async def test_tokens_come_a_chunk_interval_apart_and_the_end_does_not_wait() -> None:
    interval, loop = 0.2, asyncio.get_running_loop()
    stream = ResultStream([request()], chunk_interval=interval)
    put_all(stream, 0, STARTED, Tokens((1,), "a"))
    assert [(await anext(stream)).event for _ in range(2)] == [STARTED, Tokens((1,), "a")]
    first = loop.time()
    put_all(stream, 0, Tokens((2,), "b"))
    assert stream.unread_token_count == 0  # the reader could not have it yet
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    put_all(stream, 0, Tokens((3,), "c"))
    assert (await waiting).event == Tokens((2, 3), "bc")
    assert loop.time() >= first + interval
    put_all(stream, 0, Tokens((4,), "d"), RESULT)
    assert [(await anext(stream)).event for _ in range(2)] == [Tokens((4,), "d"), RESULT]


async def test_tokens_that_the_interval_held_are_not_unread_when_they_are_due_but_those_after_are() -> None:
    interval, loop = 0.05, asyncio.get_running_loop()
    stream = ResultStream([request()], chunk_interval=interval)
    put_all(stream, 0, Tokens((1,), "a"))
    await anext(stream)
    put_all(stream, 0, Tokens((2, 3, 4), "b"))
    due_at = loop.time() + interval
    while loop.time() < due_at:
        await asyncio.sleep(interval / 5)
    assert stream.unread_token_count == 0
    put_all(stream, 0, Tokens((5, 6), "c"))
    assert stream.unread_token_count == 2
    assert (await anext(stream)).event == Tokens((2, 3, 4, 5, 6), "bc")
    assert stream.unread_token_count == 0

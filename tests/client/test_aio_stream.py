"""Leaving a stream of the asyncio client, in every way, ends the server's work."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
import treadle
from treadle import AsyncClient

from tests.client.scripted import PATIENCE, REFUSES, RESULT, STARTED, ScriptedServer, endless, of, says, silent


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[AsyncClient]:
    server.play(endless)
    async with AsyncClient(server.address) as client:
        yield client


async def ended(server: ScriptedServer) -> bool:
    return await asyncio.to_thread(server.asked[0].ended.wait, PATIENCE)


async def test_break_ends_the_work_even_while_the_stream_is_held(client: AsyncClient, server: ScriptedServer) -> None:
    stream = client.generate("hi")
    async for _ in stream:
        break
    assert await ended(server)
    assert stream.started is not None


async def test_break_out_of_the_text_ends_the_work(client: AsyncClient, server: ScriptedServer) -> None:
    stream = client.generate("hi")
    async for piece in stream.text():
        assert piece == "again "
        break
    assert await ended(server)
    assert stream.started is not None


async def test_leaving_the_with_block_ends_the_work(client: AsyncClient, server: ScriptedServer) -> None:
    async with client.generate("hi") as stream:
        events = aiter(stream)
        await anext(events)
    assert await ended(server)
    with pytest.raises(treadle.Cancelled):
        _ = [event async for event in events]


async def test_dropping_the_stream_unread_ends_the_work(client: AsyncClient, server: ScriptedServer) -> None:
    stream = client.generate("hi")
    await asyncio.to_thread(server.wait_for_call)
    del stream
    gc.collect()
    assert await ended(server)


async def test_cancelling_the_task_that_reads_ends_the_work(client: AsyncClient, server: ScriptedServer) -> None:
    server.play(silent)

    async def read() -> None:
        async for _ in client.generate("hi"):
            pass

    task = asyncio.create_task(read())
    await asyncio.to_thread(server.wait_for_call)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ended(server)


async def test_cancel_reaches_the_reader_as_an_error_of_ours(client: AsyncClient, server: ScriptedServer) -> None:
    server.play(silent)
    stream = client.generate("hi")
    asyncio.get_running_loop().call_later(0.1, stream.cancel)
    with pytest.raises(treadle.Cancelled):
        _ = [event async for event in stream]


async def test_cancel_ends_the_wait_for_another_attempt(server: ScriptedServer) -> None:
    server.play(REFUSES)
    patient = treadle.RetryPolicy(initial_backoff=PATIENCE, max_backoff=PATIENCE)
    async with AsyncClient(server.address, retry=patient) as client:
        stream = client.generate("hi")
        asyncio.get_running_loop().call_later(0.3, stream.cancel)
        with pytest.raises(treadle.Cancelled):
            _ = [event async for event in stream]
    assert len(server.asked) == 1


async def test_the_result_is_there_after_the_end(server: ScriptedServer) -> None:
    async with AsyncClient(server.address) as client:
        stream = client.generate("hi")
        assert [piece async for piece in stream.text()] == ["Hello", " world"]
        assert stream.result.finish_reason is treadle.FinishReason.MAX_NEW_TOKENS
        with pytest.raises(RuntimeError, match="read already"):
            aiter(stream)


async def test_many_streams_of_one_client_run_at_once(server: ScriptedServer) -> None:
    async with AsyncClient(server.address) as client:

        async def text() -> str:
            return "".join([piece async for piece in client.generate("hi").text()])

        assert await asyncio.gather(*(text() for _ in range(20))) == ["Hello world"] * 20


async def test_each_of_several_generations_has_its_result_after_the_end(server: ScriptedServer) -> None:
    server.play(says(of(1, STARTED), of(1, RESULT), STARTED, RESULT))
    async with AsyncClient(server.address) as client:
        stream = client.generate("hi", n=2)
        with pytest.raises(RuntimeError, match="no result yet"):
            _ = stream.results
        _ = [event async for event in stream]
        assert stream.started == treadle.Started(0, "r1", 7, 3, 1)
        assert [result.index for result in stream.results] == [0, 1]
        with pytest.raises(RuntimeError, match="has 2 generations, and `result` is for one: use `results`"):
            _ = stream.result

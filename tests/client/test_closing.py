"""What a closed client tells those who use it, and those who were using it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
import treadle
from treadle import AsyncClient, Client, RetryPolicy

from tests.client.scripted import PATIENCE, REFUSES, ScriptedServer, endless, silent

CALLS: list[Callable[[Client], object]] = [
    lambda client: client.generate("hi"),
    lambda client: client.complete("hi"),
    lambda client: client.complete_all("hi", n=2),
    lambda client: client.tokenize("hi"),
    lambda client: client.detokenize([1]),
    lambda client: client.model(),
    lambda client: client.load(),
    lambda client: client.health(),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_a_closed_client_says_so(server: ScriptedServer, call: Callable[[Client], object]) -> None:
    client = Client(server.address)
    client.close()
    with pytest.raises(treadle.ClientClosed, match="the client is closed"):
        call(client)
    assert server.asked == []


ASYNC_CALLS: list[Callable[[AsyncClient], Awaitable[object]]] = [
    lambda client: client.complete("hi"),
    lambda client: client.complete_all("hi", n=2),
    lambda client: client.tokenize("hi"),
    lambda client: client.detokenize([1]),
    lambda client: client.model(),
    lambda client: client.load(),
    lambda client: client.health(),
]


@pytest.mark.parametrize("call", ASYNC_CALLS)
async def test_a_call_of_a_closed_async_client_says_so(
    server: ScriptedServer, call: Callable[[AsyncClient], Awaitable[object]]
) -> None:
    client = AsyncClient(server.address)
    await client.close()
    with pytest.raises(treadle.ClientClosed, match="the client is closed"):
        await call(client)
    with pytest.raises(treadle.ClientClosed, match="the client is closed"):
        client.generate("hi")
    assert server.asked == []


def close_once_called(client: Client, server: ScriptedServer) -> threading.Thread:
    """Closes the client from another thread."""

    def close() -> None:
        server.wait_for_call()
        client.close()

    closer = threading.Thread(target=close)
    closer.start()
    return closer


def test_closing_during_the_wait_for_another_attempt_ends_the_attempts(server: ScriptedServer) -> None:
    server.play(REFUSES)
    client = Client(server.address, retry=RetryPolicy(initial_backoff=0.3))
    stream = client.generate("hi")
    closer = close_once_called(client, server)
    with pytest.raises((treadle.ClientClosed, treadle.Cancelled)):  # which one depends on when it is closed
        list(stream)
    closer.join()
    assert len(server.asked) == 1


def complete(client: Client) -> None:
    client.complete("hi")


def read(client: Client) -> None:
    list(client.generate("hi"))


@pytest.mark.parametrize("use", [complete, read])
def test_closing_from_another_thread_cancels_what_runs(server: ScriptedServer, use: Callable[[Client], None]) -> None:
    server.play(silent)
    client = Client(server.address)
    closer = close_once_called(client, server)
    with pytest.raises(treadle.Cancelled):
        use(client)
    closer.join()
    assert server.asked[0].ended.wait(PATIENCE)


async def async_complete(client: AsyncClient) -> None:
    await client.complete("hi")


async def async_read(client: AsyncClient) -> None:
    _ = [event async for event in client.generate("hi")]


@pytest.mark.parametrize("script", [silent, endless])
@pytest.mark.parametrize("use", [async_complete, async_read])
async def test_closing_cancels_what_other_tasks_await_and_not_the_tasks(
    server: ScriptedServer, use: Callable[[AsyncClient], Awaitable[None]], script: object
) -> None:
    server.play(script)  # type: ignore[arg-type]
    client = AsyncClient(server.address)

    async def survive() -> str:
        with pytest.raises(treadle.Cancelled):
            await use(client)
        return "went on"

    task = asyncio.create_task(survive())
    await asyncio.to_thread(server.wait_for_call)
    await client.close()
    assert await task == "went on"
    assert await asyncio.to_thread(server.asked[0].ended.wait, PATIENCE)


@pytest.mark.parametrize("use", [async_complete, async_read])
async def test_a_task_that_is_cancelled_stays_cancelled(
    server: ScriptedServer, use: Callable[[AsyncClient], Awaitable[None]]
) -> None:
    server.play(silent)
    async with AsyncClient(server.address) as client:
        task = asyncio.ensure_future(use(client))
        await asyncio.to_thread(server.wait_for_call)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await use(client)

"""A refusal is trailers only: no initial metadata goes out before it, so that a proxy may still ask another server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import grpc
import pytest
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

from tests.server.rpc.relay import END_STREAM, HEADERS, Relay
from tests.server.rpc.serving import ENGINE, SERVER, Refusal, Serving, Start, eventually, generate_request, refusal

if TYPE_CHECKING:  # what the stub is made as, and known to its types alone
    from treadle.v1.generation_pb2_grpc import GenerationServiceAsyncStub

State: TypeAlias = Callable[[Start], Awaitable[Serving]]


async def loading(start: Start) -> Serving:
    serving = Serving()
    serving.loading.close()
    return await start(serving)


async def draining(start: Start) -> Serving:
    serving = await (await start(Serving())).ready()
    serving.engine.drain()
    return serving


async def full(start: Start) -> Serving:
    serving = await (await start(Serving(engine_settings=replace(ENGINE, max_slots=1, max_waiting=0)))).ready()
    await serving.hold_steps(generate_request())
    return serving


async def crowded(start: Start) -> Serving:
    serving = await (await start(Serving(server_settings=replace(SERVER, max_open_requests=1)))).ready()
    await serving.hold_steps(generate_request())
    return serving


@asynccontextmanager
async def relayed(serving: Serving) -> "AsyncIterator[tuple[Relay, GenerationServiceAsyncStub]]":
    async with Relay(serving.port) as relay, grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
        yield relay, GenerationServiceStub(channel)


@pytest.mark.parametrize(
    ("state", "code", "reason"),
    [
        (loading, grpc.StatusCode.UNAVAILABLE, "NOT_READY"),
        (draining, grpc.StatusCode.UNAVAILABLE, "DRAINING"),
        (full, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
        (crowded, grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_OPEN_CALLS"),
    ],
)
@pytest.mark.parametrize("method", ["Generate", "Complete"])
async def test_what_another_server_might_take_is_refused_without_initial_metadata(
    start: Start, state: State, code: grpc.StatusCode, reason: str, method: str
) -> None:
    serving = await state(start)
    async with relayed(serving) as (relay, stub):
        refused = await refusal_of(stub, method)
        assert (refused.code, refused.reason) == (code, reason)
        (headers,) = [frame for frame in relay.frames() if frame.type == HEADERS]
        assert headers.flags & END_STREAM


async def test_a_call_that_waits_for_a_slot_has_had_no_initial_metadata(start: Start) -> None:
    serving = await (await start(Serving(engine_settings=replace(ENGINE, max_slots=1)))).ready()
    running = await serving.hold_steps(generate_request())
    async with relayed(serving) as (relay, stub):
        waiting = stub.Generate(generate_request())
        await eventually(lambda: serving.engine.load().waiting == 1)
        assert HEADERS not in [frame.type for frame in relay.frames()]
        serving.steps.open()
        assert [event async for event in waiting][-1].HasField("result")
    assert [event async for event in running][-1].HasField("result")


async def refusal_of(stub: "GenerationServiceAsyncStub", method: str) -> Refusal:
    if method == "Generate":
        return await refusal(stub.Generate(generate_request()))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Complete(pb.CompleteRequest(generate=generate_request()))
    return Refusal.of(raised.value)

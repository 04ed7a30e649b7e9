"""How much may be open at once, and under which names."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from treadle.v1 import generation_pb2 as pb

from server.rpc.request_id import METADATA_KEY
from tests.server.rpc.serving import (
    SERVER,
    GenerateCall,
    Refusal,
    Serving,
    Start,
    eventually,
    generate_request,
    kinds,
    refusal,
    refusal_of_answer,
)

OPEN_BYTES = 600


def message_of(size: int) -> pb.GenerateRequest:
    """Of so many bytes on the wire."""
    request = generate_request("x", max_new_tokens=100)
    request.truncate_prompt_tokens = 8
    while request.ByteSize() < size:
        request.prompt += "x"
    assert request.ByteSize() == size
    return request


async def few_bytes(start: Start) -> Serving:
    settings = replace(SERVER, max_open_bytes=OPEN_BYTES)
    return await (await start(Serving(server_settings=settings))).ready()


async def hold_in_engine(serving: Serving, *requests: pb.GenerateRequest) -> list[GenerateCall]:
    serving.steps.close()
    calls = [serving.stub.Generate(request) for request in requests]
    await eventually(lambda: serving.engine._queue.in_flight == len(requests))
    return calls


def check_too_many(refused: Refusal) -> None:
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_OPEN_BYTES")
    assert refused.retry_after == 1


async def test_messages_of_more_bytes_than_may_be_open_are_refused_and_bytes_come_back(start: Start) -> None:
    serving = await few_bytes(start)
    for _ in range(3):
        calls = await hold_in_engine(serving, message_of(240), message_of(240))
        check_too_many(await serving.refusal(message_of(121)))
        check_too_many(await refusal_of_answer(serving.stub.Tokenize(pb.TokenizeRequest(text="x" * 300))))
        assert await serving.stub.GetLoad(pb.GetLoadRequest())
        fits = serving.stub.Generate(message_of(120))
        await eventually(lambda: serving.engine._queue.in_flight == 3)
        serving.steps.open()
        for call in (*calls, fits):
            assert kinds([event async for event in call])[-1] == "result"
        await serving.server.idle()
        assert serving.server._calls.byte_count == 0


async def test_bytes_come_back_however_a_call_ends(start: Start) -> None:
    serving = await few_bytes(start)
    (call,) = await hold_in_engine(serving, message_of(400))
    check_too_many(await serving.refusal(message_of(201)))
    call.cancel()
    await serving.server.idle()
    invalid = message_of(400)
    invalid.priority = 101
    assert (await serving.refusal(invalid)).field == "priority"
    serving.steps.open()
    await serving.server.idle()
    assert serving.server._calls.byte_count == 0
    assert kinds(await serving.events(message_of(OPEN_BYTES)))[-1] == "result"


async def test_bytes_that_were_refused_are_not_counted(start: Start) -> None:
    serving = await few_bytes(start)
    for _ in range(20):
        check_too_many(await serving.refusal(message_of(OPEN_BYTES + 1)))
    assert kinds(await serving.events(message_of(OPEN_BYTES)))[-1] == "result"


async def test_calls_in_flight_may_have_the_same_id_in_their_metadata(serving: Serving) -> None:
    metadata = ((METADATA_KEY, "of the application"),)
    serving.steps.close()
    calls = [serving.stub.Generate(generate_request(), metadata=metadata) for _ in range(3)]
    complete = serving.stub.Complete(pb.CompleteRequest(generate=generate_request()), metadata=metadata)
    await eventually(lambda: serving.engine._queue.in_flight == 4)
    serving.steps.open()
    for call in calls:
        events = [event async for event in call]
        assert events[0].started.request_id == "of the application"
        assert kinds(events)[-1] == "result"
    assert (await complete).request_id == "of the application"


async def test_an_id_in_the_metadata_does_not_claim_it_from_the_field(serving: Serving) -> None:
    metadata = ((METADATA_KEY, "mine"),)
    serving.steps.close()
    by_metadata = serving.stub.Generate(generate_request(), metadata=metadata)
    await eventually(lambda: serving.engine._queue.in_flight == 1)
    by_field = serving.stub.Generate(generate_request(request_id="mine"))
    await eventually(lambda: serving.engine._queue.in_flight == 2)
    late = serving.stub.Generate(generate_request(), metadata=metadata)
    await eventually(lambda: serving.engine._queue.in_flight == 3)
    refused = await refusal(serving.stub.Generate(generate_request(request_id="mine")))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    refused = await refusal_of_answer(serving.complete(generate_request(request_id="mine")))
    assert refused.reason == "DUPLICATE_REQUEST_ID"
    serving.steps.open()
    for call in (by_metadata, by_field, late):
        assert kinds([event async for event in call])[-1] == "result"
    assert kinds(await serving.events(generate_request(request_id="mine")))[-1] == "result"


@pytest.mark.parametrize("way", ["cancelled", "failed", "completed"])
async def test_an_id_is_free_again_however_its_call_ended(serving: Serving, way: str) -> None:
    for _ in range(3):
        request = generate_request(request_id="mine")
        if way == "cancelled":
            call = await serving.hold_steps(request)
            call.cancel()
            await serving.server.idle()
            serving.steps.open()
        elif way == "failed":
            request.priority = 101
            assert (await serving.refusal(request)).field == "priority"
        else:
            await asyncio.gather(serving.complete(request))
    assert kinds(await serving.events(generate_request(request_id="mine")))[-1] == "result"

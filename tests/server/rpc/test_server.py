import asyncio
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2
from treadle.v1 import generation_pb2 as pb

from server.rpc.server import CannotListen
from tests.server.rpc.serving import SERVER, Serving, Start, eventually, generate_request


async def test_every_method_of_the_service_is_served(serving: Serving) -> None:
    for method in pb.DESCRIPTOR.services_by_name["GenerationService"].methods:
        path = f"/{method.containing_service.full_name}/{method.name}"
        call = serving.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)(b"\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT, method.name


async def test_a_port_in_use_is_said_in_one_line_with_the_address(serving: Serving, start: Start) -> None:
    with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{serving.port}: .*Address already in use"):
        await Serving(server_settings=replace(SERVER, port=serving.port)).start()


async def test_stopping_does_not_wait_for_a_watch_that_stays_open(serving: Serving) -> None:
    watch = aiter(serving.health.Watch(health_pb2.HealthCheckRequest()))
    await anext(watch)
    await serving.engine.stop()
    await serving.server.stop()
    with pytest.raises(grpc.aio.AioRpcError):
        [_ async for _ in watch]


async def test_stopping_lets_what_has_ended_reach_its_client(serving: Serving) -> None:
    stream = await serving.hold_steps(generate_request())
    complete = serving.stub.Complete(pb.CompleteRequest(generate=generate_request(max_new_tokens=30)))
    await eventually(lambda: serving.engine.load().waiting == 1)
    serving.engine.drain()
    idle = asyncio.create_task(serving.server.idle())
    await asyncio.sleep(0.01)
    assert not idle.done()
    serving.steps.open()
    await idle
    await serving.server.stop()
    assert len((await complete).completions[0].token_ids) == 30
    assert [event async for event in stream][-1].HasField("result")

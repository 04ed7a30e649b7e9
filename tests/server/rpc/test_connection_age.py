"""A connection that has grown old takes no new calls, and what runs on it is not cut."""

import asyncio
from dataclasses import replace

import grpc
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

from tests.server.rpc.relay import Relay
from tests.server.rpc.serving import PATIENCE, SERVER, Serving, Start, generate_request

AGE = 0.3


async def test_new_calls_go_to_a_new_connection_and_a_running_stream_ends_on_the_old_one(start: Start) -> None:
    serving = await (await start(Serving(server_settings=replace(SERVER, max_connection_age=AGE)))).ready()
    async with Relay(serving.port) as relay, grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
        stub = GenerationServiceStub(channel)
        serving.steps.close()
        running = stub.Generate(generate_request())
        await asyncio.to_thread(serving.steps.reached.wait, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while relay.connection_count < 4:
                await stub.GetLoad(pb.GetLoadRequest())
                await asyncio.sleep(AGE / 10)
        serving.steps.open()
        assert [event async for event in running][-1].HasField("result")


async def test_the_grace_bounds_what_runs_on_an_old_connection(start: Start) -> None:
    settings = replace(SERVER, max_connection_age=AGE, max_connection_age_grace=AGE)
    serving = await (await start(Serving(server_settings=settings))).ready()
    running = await serving.hold_steps(generate_request())
    assert await asyncio.wait_for(running.code(), PATIENCE) is grpc.StatusCode.UNAVAILABLE

"""Clients that read slowly, late or never."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

from server.engine.plan import StepOutcome, StepPlan
from tests.server.fakes import FakeModel, FakeTokenizer
from tests.server.rpc.serving import (
    ENGINE,
    PATIENCE,
    GenerateCall,
    Serving,
    Start,
    by_index,
    eventually,
    generate_request,
    kinds,
    refusal,
    token_ids,
)


class Loud(FakeTokenizer):
    """A token is 16 KiB of text, so that a few fill what lies between the server and a client that does not read."""

    def token_bytes(self, token_id: int) -> bytes:  # the protocol has it
        return b"x" * (16 << 10)

    def decode(self, token_ids: Sequence[int], *, keep_special_tokens: bool = False) -> str:
        return "x" * (16 << 10) * len(token_ids)


SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 64 << 10), ("grpc.http2.bdp_probe", 0))


class Deliberate(FakeModel):
    """Takes its time, so that only the client can be the slow one. Fails at the position `fails_at`."""

    fails_at: int | None = None

    def step(self, plan: StepPlan) -> StepOutcome:
        time.sleep(0.001)
        if any(span.start == self.fails_at for span in plan.spans):
            raise RuntimeError("not here")
        return super().step(plan)


@asynccontextmanager
async def unread_generation(
    start: Start, max_unread_tokens: int = 1000, n: int = 1, fails_at: int | None = None
) -> AsyncIterator[tuple[Serving, GenerateCall]]:
    """100 tokens have been asked for, and nothing is read."""
    settings, model = replace(ENGINE, max_unread_tokens=max_unread_tokens), Deliberate()
    model.fails_at = fails_at
    serving = await (await start(Serving(model=model, tokenizer=Loud(), engine_settings=settings))).ready()
    request = generate_request(max_new_tokens=100, request_id="mine")
    request.sampling.n = n
    async with grpc.aio.insecure_channel(f"127.0.0.1:{serving.port}", options=SMALL_WINDOW) as channel:
        call = GenerationServiceStub(channel).Generate(request)
        await call.initial_metadata()
        yield serving, call


async def all_is_over(serving: Serving) -> None:
    async with asyncio.timeout(PATIENCE):
        await serving.server.idle()
    assert serving.is_empty()


@pytest.mark.parametrize("n", [1, 4])
async def test_a_client_that_never_reads_is_ended_and_hears_why_when_it_reads_at_last(start: Start, n: int) -> None:
    async with unread_generation(start, max_unread_tokens=40, n=n) as (serving, call):
        await all_is_over(serving)
        assert serving.engine.load().tokens_generated < 100 * n
        refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER")
    assert refused.trailing["x-request-id"] == "mine"


async def test_what_came_before_the_end_can_still_be_read(start: Start) -> None:
    async with unread_generation(start, max_unread_tokens=40) as (serving, call):
        await all_is_over(serving)
        events: list[pb.GenerateResponse] = []

        async def read() -> None:
            async for event in call:
                events.append(event)

        with pytest.raises(grpc.aio.AioRpcError, match="left unread"):
            await read()
    assert kinds(events) == ["started", *["tokens"] * (len(events) - 1)]
    assert len(events) > 1


async def test_the_id_of_a_client_that_does_not_read_is_free_once_it_is_ended(start: Start) -> None:
    async with unread_generation(start, max_unread_tokens=40) as (serving, _):
        await eventually(lambda: not serving.engine._streams)
        assert kinds(await serving.events(generate_request(request_id="mine")))[-1] == "result"


async def test_other_clients_hear_nothing_of_it(start: Start) -> None:
    async with unread_generation(start, max_unread_tokens=40) as (serving, _):
        others = [serving.events(generate_request(max_new_tokens=60)) for _ in range(3)]
        for events in await asyncio.gather(*others):
            assert len(token_ids(events)) == 60
            assert kinds(events)[-1] == "result"
        await all_is_over(serving)


async def test_a_client_that_does_not_read_cannot_hold_up_the_end_of_the_server(start: Start) -> None:
    async with unread_generation(start) as (serving, call):
        await eventually(lambda: serving.engine.load().tokens_generated > 20)
        serving.engine.drain()
        await serving.engine.stop()
        await all_is_over(serving)
        refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_nor_can_one_that_has_not_read_what_is_long_finished(start: Start) -> None:
    async with unread_generation(start) as (serving, _):
        await eventually(lambda: serving.engine.load().tokens_generated == 100 and serving.is_empty())
        assert serving.server._calls.count == 1
        async with asyncio.timeout(PATIENCE):
            await serving.engine.stop()
            await serving.server.stop()
            await serving.server.idle()


async def test_a_client_that_does_not_read_hears_of_a_failure_too(start: Start) -> None:
    async with unread_generation(start, fails_at=60) as (serving, call):
        await all_is_over(serving)
        refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INTERNAL, "STEP_FAILED")


async def test_a_client_that_does_not_read_can_still_cancel(start: Start) -> None:
    async with unread_generation(start) as (serving, call):
        await eventually(lambda: serving.engine.load().tokens_generated > 20)
        call.cancel()
        await eventually(serving.is_empty)
        await all_is_over(serving)


async def test_a_slow_reader_gets_its_tokens_in_larger_chunks(start: Start) -> None:
    async with unread_generation(start, max_unread_tokens=400, n=3) as (serving, call):
        await eventually(serving.is_empty)
        generations = by_index([event async for event in call])
    assert set(generations) == {0, 1, 2}
    for events in generations.values():
        chunks = [len(event.tokens.token_ids) for event in events if event.HasField("tokens")]
        assert sum(chunks) == 100
        assert max(chunks) > 10
        assert kinds(events)[-1] == "result"

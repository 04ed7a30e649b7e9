import asyncio
import time
from dataclasses import dataclass, field, replace

import grpc
import pytest
from treadle.v1 import generation_pb2 as pb

from server.engine.plan import StepOutcome, StepPlan
from server.engine.seeding import sibling_seed
from tests.server.fakes import FakeModel
from tests.server.rpc.serving import (
    ENGINE,
    Gate,
    Serving,
    Start,
    by_index,
    eventually,
    generate_request,
    kinds,
    refusal,
    refusal_of_answer,
    text,
    token_ids,
)


def sampled_request(n: int | None = None, seed: int | None = 7, max_new_tokens: int = 12) -> pb.GenerateRequest:
    request = generate_request(max_new_tokens=max_new_tokens)
    request.sampling.MergeFrom(pb.SamplingParams(temperature=1, n=n, seed=seed))
    return request


async def test_each_generation_has_its_own_started_tokens_and_result(serving: Serving) -> None:
    generations = by_index(await serving.events(sampled_request(n=6)))
    assert set(generations) == set(range(6))
    for events in generations.values():
        assert kinds(events) == ["started", *["tokens"] * (len(events) - 2), "result"]
        assert len(token_ids(events)) == events[-1].result.usage.completion_tokens == 12
    assert len({tuple(token_ids(events)) for events in generations.values()}) == 6


async def test_the_first_has_the_requests_seed_and_the_others_seeds_made_of_it(serving: Serving) -> None:
    generations = by_index(await serving.events(sampled_request(n=4)))
    assert {index: events[0].started.seed for index, events in generations.items()} == {
        index: sibling_seed(7, index) for index in range(4)
    }
    assert generations[0][0].started.seed == 7


@pytest.mark.parametrize("seed", [7, None])
async def test_every_generation_is_that_of_a_request_with_the_seed_it_tells(serving: Serving, seed: int | None) -> None:
    for events in by_index(await serving.events(sampled_request(n=4, seed=seed))).values():
        alone = await serving.events(sampled_request(seed=events[0].started.seed))
        assert token_ids(alone) == token_ids(events)
        assert text(alone) == text(events)


async def test_the_generations_share_the_blocks_of_the_prompt(serving: Serving) -> None:
    request = sampled_request(n=4)
    request.prompt = "a prompt of several blocks"
    cached = {index: e[0].started.cached_token_count for index, e in by_index(await serving.events(request)).items()}
    assert cached == {0: 0, 1: 24, 2: 24, 3: 24}


async def test_n_of_1_is_the_same_as_none(serving: Serving) -> None:
    one, unset = await serving.events(sampled_request(n=1)), await serving.events(sampled_request())
    assert kinds(one)[-1] == "result"
    assert token_ids(one) == token_ids(unset)


async def test_complete_answers_by_index_what_generate_streams(serving: Serving) -> None:
    request = sampled_request(n=5)
    generations = by_index(await serving.events(request))
    answer = await serving.complete(request)
    assert answer.seed == 7
    assert [completion.index for completion in answer.completions] == list(range(5))
    for completion in answer.completions:
        events = generations[completion.index]
        assert list(completion.token_ids) == token_ids(events)
        assert completion.text == text(events)
        assert completion.seed == events[0].started.seed
        assert completion.input == 0
        assert not completion.HasField("mean_logprob")
        assert completion.result.finish_reason == pb.FINISH_REASON_MAX_NEW_TOKENS


class FailsInSlotOne(FakeModel):
    """No sequence in slot 1 gets a fourth token of a prompt of six."""

    def step(self, plan: StepPlan) -> StepOutcome:
        if any(span.slot == 1 and span.start == 8 for span in plan.spans):
            raise RuntimeError("not in this slot")
        time.sleep(0.005)  # so that the others are not done before their client has heard of it
        return super().step(plan)


async def test_a_generation_that_fails_ends_the_stream_and_the_others(start: Start) -> None:
    serving = await (await start(Serving(model=FailsInSlotOne()))).ready()
    request = sampled_request(n=3, max_new_tokens=100)
    request.request_id = "mine"
    refused = await refusal(serving.stub.Generate(request))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INTERNAL, "STEP_FAILED")
    await eventually(serving.is_empty)
    assert serving.engine.load().tokens_generated < 100
    refused = await refusal_of_answer(serving.complete(request))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INTERNAL, "STEP_FAILED")
    await eventually(serving.is_empty)
    request.sampling.n = 1
    assert kinds(await serving.events(request))[-1] == "result"


async def test_a_cancel_frees_every_generation_running_or_waiting(serving: Serving) -> None:
    call = await serving.hold_steps(sampled_request(n=8, max_new_tokens=100))
    await eventually(lambda: serving.engine.load().waiting >= 4)
    call.cancel()
    await eventually(lambda: not serving.engine._streams)
    serving.steps.open()
    await eventually(serving.is_empty)
    assert serving.engine.load().tokens_generated <= 4
    assert len(by_index(await serving.events(sampled_request(n=12)))) == 12


async def test_a_full_queue_takes_none_of_the_generations(serving: Serving) -> None:
    running = await serving.hold_steps(sampled_request(n=9))
    refused = await serving.refusal(sampled_request(n=4))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert refused.retry_after == 1
    fits = serving.stub.Generate(sampled_request(n=3))
    await eventually(lambda: serving.engine._queue.in_flight == 12)
    serving.steps.open()
    for call, count in ((running, 9), (fits, 3)):
        assert kinds([event async for event in call]).count("result") == count
    await eventually(serving.is_empty)


@dataclass
class HoldsAfterOne(FakeModel):
    """Holds its steps after those of a first generation of twelve tokens."""

    gate: Gate = field(default_factory=Gate)

    def step(self, plan: StepPlan) -> StepOutcome:
        if len(self.plans) == 12:
            self.gate()
        return super().step(plan)


async def test_an_id_is_in_flight_until_the_last_of_its_generations_has_ended(start: Start) -> None:
    model = HoldsAfterOne()
    serving = await (await start(Serving(model=model, engine_settings=replace(ENGINE, max_slots=1)))).ready()
    model.gate.close()
    request = sampled_request(n=2)
    request.request_id = "mine"
    call = serving.stub.Generate(request)
    async for event in call:
        if event.HasField("result"):
            break
    assert (await serving.refusal(request)).reason == "DUPLICATE_REQUEST_ID"
    model.gate.open()
    assert kinds([event async for event in call]).count("result") == 1
    for _ in range(3):
        assert kinds(await serving.events(request)).count("result") == 2
        assert len((await serving.complete(request)).completions) == 2


async def test_generations_of_many_calls_at_once_are_each_as_if_alone(start: Start) -> None:
    serving = await (await start(Serving(engine_settings=replace(ENGINE, max_waiting=60)))).ready()
    requests = [sampled_request(n=seed % 5 + 1, seed=seed) for seed in range(12)]
    together = await asyncio.gather(*(serving.events(request) for request in requests))
    for request, events in zip(requests, together, strict=True):
        alone = by_index(await serving.events(request))
        assert {i: token_ids(e) for i, e in by_index(events).items()} == {i: token_ids(e) for i, e in alone.items()}

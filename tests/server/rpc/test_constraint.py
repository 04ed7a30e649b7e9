import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from treadle.v1 import generation_pb2 as pb

from server.engine.chat import Chat
from server.engine.constraint import MAX_CHOICES, MAX_SOURCE_BYTES, ConstraintSource
from server.rpc.server import CONSTRAINT_WORKERS, MAX_WAITING_CONSTRAINTS, TEMPLATE_WORKERS, TEXT_WORKERS
from tests.server.fakes import FakeConstraints, FakeTokenizer
from tests.server.rpc.serving import (
    PATIENCE,
    Gate,
    Refusal,
    Serving,
    Start,
    eventually,
    generate_request,
    refusal_of_answer,
    text,
)


def constrained(*choices: str) -> pb.GenerateRequest:
    request = pb.GenerateRequest(prompt="hello", stopping=pb.StoppingCriteria(max_new_tokens=8))
    request.constraint.choice.choices.extend(choices)
    return request


@pytest.fixture
async def compiling() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


async def test_a_constrained_output_is_an_instance_and_its_result_says_so(serving: Serving) -> None:
    answer = await serving.stub.Complete(pb.CompleteRequest(generate=constrained("yes", "no")))
    (completion,) = answer.completions
    assert completion.text in ("yes", "no")
    assert completion.result.finish_reason == pb.FINISH_REASON_END_OF_SEQUENCE
    assert completion.result.satisfies_constraint


async def test_a_result_says_that_the_output_was_cut_off_and_nothing_without_a_constraint(serving: Serving) -> None:
    *_, cut = await serving.events(constrained("a" * 20))
    *_, free = await serving.events(generate_request())
    assert cut.result.HasField("satisfies_constraint")
    assert not cut.result.satisfies_constraint
    assert not free.result.HasField("satisfies_constraint")


@pytest.mark.parametrize(
    ("constraint", "field", "said"),
    [
        (pb.Constraint(), "constraint", "one of its kinds must be set"),
        (pb.Constraint(json_schema=""), "constraint.json_schema", f"from 1 to {MAX_SOURCE_BYTES}"),
        (pb.Constraint(json_schema="true"), "constraint.json_schema", "the fake takes only choices"),
        (pb.Constraint(json_object=pb.JsonObject()), "constraint.json_object", "the fake takes only choices"),
        (pb.Constraint(regex="a"), "constraint.regex", "the fake takes only choices"),
        (pb.Constraint(grammar="a"), "constraint.grammar", "the fake takes only choices"),
        (pb.Constraint(choice=pb.Choice()), "constraint.choice", f"from 1 to {MAX_CHOICES}"),
        (pb.Constraint(choice=pb.Choice(choices=["a", ""])), "constraint.choice.choices[1]", "must have a character"),
    ],
)
async def test_a_refused_constraint_names_its_field(
    serving: Serving, constraint: pb.Constraint, field: str, said: str
) -> None:
    request = generate_request()
    request.constraint.CopyFrom(constraint)
    refused = await serving.refusal(request)
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert said in refused.message


def forbidden_to_go_on() -> pb.GenerateRequest:
    request = constrained("abc")
    request.sampling.forbidden_sequences.add(ids=b"ab")
    return request


async def test_a_constraint_that_cannot_be_followed_is_the_requests_own_fault_in_the_middle_of_the_stream(
    serving: Serving,
) -> None:
    heard = []

    async def hear() -> None:
        async for event in serving.stub.Generate(forbidden_to_go_on()):
            heard.append(event)

    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await hear()
    failed = Refusal.of(ended.value)
    assert text(heard) == "a"
    assert (failed.code, failed.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CONSTRAINT_FAILED")
    assert failed.field == "sampling.forbidden_sequences"
    assert "must leave a token" in failed.message


async def test_complete_names_the_field_of_a_constraint_that_cannot_be_followed_by_its_own_path(
    serving: Serving,
) -> None:
    failed = await refusal_of_answer(serving.complete(forbidden_to_go_on()))
    assert (failed.reason, failed.field) == ("CONSTRAINT_FAILED", "generate.sampling.forbidden_sequences")


async def test_constraints_that_are_slow_to_compile_hold_up_neither_text_nor_what_is_compiled(
    start: Start, compiling: Gate
) -> None:
    constraints = FakeConstraints(before_compiling=compiling)
    serving = await (await start(Serving(constraints=constraints))).ready()
    await serving.events(constrained("compiled"))
    compiling.close()
    slow = [asyncio.create_task(serving.events(constrained(f"slow {i}"))) for i in range(TEXT_WORKERS + 1)]
    assert await asyncio.to_thread(compiling.reached.wait, PATIENCE)
    assert (await serving.events(generate_request()))[-1].HasField("result")
    assert (await serving.events(constrained("compiled")))[-1].HasField("result")
    assert (await serving.stub.Tokenize(pb.TokenizeRequest(text="hello"))).token_ids
    assert not any(task.done() for task in slow)
    compiling.open()
    assert all(events[-1].HasField("result") for events in await asyncio.gather(*slow))


async def test_a_call_that_ends_while_its_constraint_waits_to_be_compiled_leaves_nothing_behind(
    start: Start, compiling: Gate
) -> None:
    begun: list[ConstraintSource] = []

    def hold(source: ConstraintSource) -> None:
        begun.append(source)
        compiling()

    serving = await (await start(Serving(constraints=FakeConstraints(before_compiling=hold)))).ready()
    compiling.close()
    slow = [asyncio.create_task(serving.events(constrained(f"slow {i}"))) for i in range(CONSTRAINT_WORKERS)]
    await eventually(lambda: len(begun) == CONSTRAINT_WORKERS)
    waiting = serving.stub.Generate(constrained("waiting"), timeout=0.2)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await waiting.read()
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    compiling.open()
    await asyncio.gather(*slow)
    assert len(begun) == CONSTRAINT_WORKERS
    assert serving.is_empty()


async def test_one_constraint_more_than_may_wait_is_refused_and_the_others_are_compiled(
    start: Start, compiling: Gate
) -> None:
    serving = await (await start(Serving(constraints=FakeConstraints(before_compiling=compiling)))).ready()
    compiling.close()
    count = CONSTRAINT_WORKERS + MAX_WAITING_CONSTRAINTS
    calls = [asyncio.create_task(serving.refusal(constrained(f"slow {i}"))) for i in range(count + 1)]
    (refused,), waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    refusal = refused.result()
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_WAITING")
    assert refusal.retry_after is not None
    assert len(waiting) == count
    for task in waiting:
        task.cancel()
    compiling.open()
    assert (await serving.events(constrained("next")))[-1].HasField("result")


async def test_templates_of_requests_that_are_slow_hold_up_no_constraint(start: Start, compiling: Gate) -> None:
    class Slow(FakeTokenizer):
        allows_request_templates = True

        def render_chat(self, chat: Chat) -> str:
            compiling()
            return super().render_chat(chat)

    serving = await (await start(Serving(tokenizer=Slow()))).ready()
    compiling.close()
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], template="{{ 1 }}")
    request = pb.GenerateRequest(chat=chat, stopping=pb.StoppingCriteria(max_new_tokens=1))
    slow = [asyncio.create_task(serving.events(request)) for _ in range(TEMPLATE_WORKERS + 1)]
    assert await asyncio.to_thread(compiling.reached.wait, PATIENCE)
    assert (await serving.events(constrained("yes")))[-1].HasField("result")
    assert not any(task.done() for task in slow)
    compiling.open()
    assert all(events[-1].HasField("result") for events in await asyncio.gather(*slow))


@pytest.mark.parametrize("ahead", [0, CONSTRAINT_WORKERS], ids=["compiled", "waiting"])
async def test_a_time_limit_is_kept_while_the_constraint_waits_or_is_compiled(
    start: Start, compiling: Gate, ahead: int
) -> None:
    serving = await (await start(Serving(constraints=FakeConstraints(before_compiling=compiling)))).ready()
    compiling.close()
    others = [asyncio.create_task(serving.events(constrained(f"slow {i}"))) for i in range(ahead)]
    request = constrained("yes")
    request.stopping.time_limit.FromMilliseconds(200)
    answer = await asyncio.wait_for(serving.complete(request), PATIENCE)
    (completion,) = answer.completions
    assert completion.result.finish_reason == pb.FINISH_REASON_TIME_LIMIT
    assert (completion.text, completion.result.usage.completion_tokens) == ("", 0)
    assert not serving.model.plans
    compiling.open()
    await asyncio.gather(*others)


async def test_a_time_limit_that_is_none_is_refused_by_name_whatever_its_constraint(serving: Serving) -> None:
    request = constrained("yes")
    request.stopping.time_limit.FromMilliseconds(-200)
    assert (await serving.refusal(request)).field == "stopping.time_limit"

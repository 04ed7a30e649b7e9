import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from treadle.v1 import generation_pb2 as pb

from server.engine.constraint import Choice, ConstraintSource, Grammar, JsonObject, JsonSchema, Regex
from server.rpc.constraint_from_wire import constraint
from tests.server.fakes import FakeConstraints
from tests.server.rpc.serving import PATIENCE, Gate, Serving, Start, eventually, generate_request, kinds, text


@pytest.mark.parametrize(
    ("message", "source"),
    [
        (pb.Constraint(json_schema="{}"), JsonSchema("{}")),
        (pb.Constraint(json_object=pb.JsonObject()), JsonObject()),
        (pb.Constraint(regex="a+"), Regex("a+")),
        (pb.Constraint(grammar='start: "a"'), Grammar('start: "a"')),
        (pb.Constraint(choice=pb.Choice(choices=["a", "b"])), Choice(("a", "b"))),
    ],
)
def test_every_kind_is_read(message: pb.Constraint, source: ConstraintSource) -> None:
    assert constraint(message) == source


def request_of(*choices: str, **stopping: object) -> pb.GenerateRequest:
    request = pb.GenerateRequest(prompt="hello", stopping=pb.StoppingCriteria(**stopping))  # type: ignore[arg-type]
    request.constraint.choice.choices.extend(choices)
    return request


async def end_of(serving: Serving, request: pb.GenerateRequest) -> tuple[str, pb.Result]:
    events = await serving.events(request)
    (completion,) = (await serving.complete(request)).completions
    result = events[-1].result
    assert completion.text == text(events)
    assert completion.result.finish_reason == result.finish_reason
    assert completion.result.HasField("satisfies_constraint") == result.HasField("satisfies_constraint")
    assert completion.result.satisfies_constraint == result.satisfies_constraint
    return text(events), result


async def test_a_whole_output_satisfies_its_constraint(serving: Serving) -> None:
    output, result = await end_of(serving, request_of("red", "green"))
    assert output in ("red", "green")
    assert result.satisfies_constraint
    assert result.finish_reason == pb.FINISH_REASON_END_OF_SEQUENCE


async def test_an_output_that_is_cut_off_does_not_and_says_so(serving: Serving) -> None:
    output, result = await end_of(serving, request_of("green", max_new_tokens=3))
    assert output == "gre"
    assert result.HasField("satisfies_constraint")
    assert not result.satisfies_constraint
    assert result.finish_reason == pb.FINISH_REASON_MAX_NEW_TOKENS


async def test_a_limit_that_falls_on_an_instance_satisfies_it(serving: Serving) -> None:
    output, result = await end_of(serving, request_of("green", max_new_tokens=5))
    assert (output, result.satisfies_constraint) == ("green", True)


async def test_nothing_is_said_where_a_stop_sequence_has_cut_the_text(serving: Serving) -> None:
    output, result = await end_of(serving, request_of("green", stop=["ee"]))
    assert output == "gr"
    assert result.finish_reason == pb.FINISH_REASON_STOP_SEQUENCE
    assert not result.HasField("satisfies_constraint")


async def test_nothing_is_said_without_a_constraint(serving: Serving) -> None:
    result = (await serving.events(generate_request()))[-1].result
    assert not result.HasField("satisfies_constraint")


async def test_a_time_limit_leaves_a_beginning(serving: Serving) -> None:
    await end_of(serving, request_of("green"))  # so that it is compiled when the time is up
    output, result = await end_of(serving, request_of("green", time_limit=Duration(nanos=1)))
    assert (output, result.finish_reason) == ("", pb.FINISH_REASON_TIME_LIMIT)
    assert result.HasField("satisfies_constraint")
    assert not result.satisfies_constraint


async def test_every_generation_and_every_input_follows_the_constraint_by_itself(serving: Serving) -> None:
    choices = ("\x01", "Z", "é")  # whose first bytes are far apart, so that the fake model chooses all of them
    request = request_of(*choices)
    request.ClearField("prompt")
    request.sampling.MergeFrom(pb.SamplingParams(n=4, temperature=1, seed=1))
    answer = await serving.complete(request, [pb.Input(prompt="a"), pb.Input(prompt="b")])
    assert {completion.text for completion in answer.completions} <= set(choices)
    assert len({completion.text for completion in answer.completions}) > 1
    assert all(completion.result.satisfies_constraint for completion in answer.completions)


async def test_a_constraint_is_compiled_beside_everything_else_and_once(start: Start) -> None:
    gate, compiled = Gate(), list[ConstraintSource]()

    def before_compiling(source: ConstraintSource) -> None:
        compiled.append(source)
        gate()

    constraints = FakeConstraints(before_compiling=before_compiling)
    serving = await (await start(Serving(constraints=constraints))).ready()
    gate.close()
    call = serving.stub.Generate(request_of("red"))
    await asyncio.to_thread(gate.reached.wait, PATIENCE)
    assert kinds(await serving.events(generate_request()))[-1] == "result"
    gate.open()
    assert text([event async for event in call]) == "red"
    assert text(await serving.events(request_of("red"))) == "red"
    assert compiled == [Choice(("red",))]


async def test_a_call_cancelled_while_its_constraint_is_compiled_never_reaches_the_engine(start: Start) -> None:
    gate = Gate()
    serving = await (await start(Serving(constraints=FakeConstraints(before_compiling=gate)))).ready()
    gate.close()
    call = serving.stub.Generate(request_of("red"))
    await asyncio.to_thread(gate.reached.wait, PATIENCE)
    call.cancel()
    await serving.server.idle()
    gate.open()
    await eventually(serving.is_empty)
    assert serving.engine.load().tokens_generated == 0


async def test_a_server_that_compiles_nothing_refuses_every_kind_by_its_name(start: Start) -> None:
    serving = await (await start(Serving(constraints=FakeConstraints(can_compile=False)))).ready()
    refused = await serving.refusal(request_of("red"))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "constraint.choice")

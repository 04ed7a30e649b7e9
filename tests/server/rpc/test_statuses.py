import asyncio
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.engine.errors import ChatTemplateMissing, EngineError, InvalidArgument
from server.engine.plan import StepOutcome, StepPlan
from server.rpc.errors import CallError
from server.rpc.statuses import ANSWERS, UNEXPECTED, answer_to, status_of
from tests.server.fakes import FakeModel, FakeTokenizer
from tests.server.rpc.serving import ENGINE, SERVER, Serving, Start, eventually, generate_request, refusal


def test_every_error_has_its_own_row_in_the_table() -> None:
    assert set(ANSWERS) == {*_kinds_of(EngineError), *_kinds_of(CallError)}
    reasons = [answer.reason for answer in ANSWERS.values()]
    assert len(set(reasons)) == len(reasons)
    assert answer_to(KeyError()) is UNEXPECTED


def _kinds_of(error: type[Exception]) -> Iterator[type[Exception]]:
    for kind in error.__subclasses__():
        yield kind
        yield from _kinds_of(kind)


def test_what_only_the_log_may_say_is_not_told() -> None:
    status = status_of(KeyError("secret"))
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secret" not in str(status)


def test_an_invalid_argument_tells_field_value_and_limit_to_people_and_machines() -> None:
    status = status_of(InvalidArgument("sampling.top_p", 1.5, "must be at most 1"))
    assert status.message == "sampling.top_p is 1.5: must be at most 1"
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    assert dict(info.metadata) == {"field": "sampling.top_p", "value": "1.5", "limit": "must be at most 1"}


@given(st.text(min_size=300, max_size=3000), st.text(min_size=300, max_size=3000))
def test_details_fit_a_clients_limit_on_metadata_whatever_the_request_says(value: str, limit: str) -> None:
    status = status_of(InvalidArgument("chat.messages", value, limit))
    percent_encoded = 3 * len(status.message.encode())
    base64 = 4 * status.ByteSize() / 3
    assert percent_encoded + base64 < 6 * 1024


async def test_a_full_queue_refuses_at_once_and_says_when_to_retry(start: Start) -> None:
    settings = replace(ENGINE, max_slots=1, max_waiting=1)
    serving = await (await start(Serving(engine_settings=settings))).ready()
    running = await serving.hold_steps(generate_request())
    waiting = serving.stub.Generate(generate_request())
    await eventually(lambda: serving.engine.load().waiting == 1)
    refused = await serving.refusal(generate_request())
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert refused.retry_after == 1
    serving.steps.open()
    for call in (running, waiting):
        assert [event async for event in call][-1].HasField("result")


async def test_a_request_id_in_flight_is_refused_and_free_again_afterwards(serving: Serving) -> None:
    running = await serving.hold_steps(generate_request(request_id="mine"))
    refused = await serving.refusal(generate_request(request_id="mine"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    serving.steps.open()
    assert [event async for event in running][-1].HasField("result")
    assert (await serving.events(generate_request(request_id="mine")))[-1].HasField("result")


async def test_a_server_that_loads_says_unavailable(start: Start) -> None:
    serving = Serving()
    serving.loading.close()
    await start(serving)
    refused = await serving.refusal(generate_request())
    assert (refused.code, refused.reason, refused.retry_after) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY", 5)
    with pytest.raises(grpc.aio.AioRpcError, match="loading"):
        await serving.stub.GetModel(pb.GetModelRequest())
    with pytest.raises(grpc.aio.AioRpcError, match="loading"):
        await serving.stub.GetLoad(pb.GetLoadRequest())
    serving.loading.open()
    await serving.ready()
    assert (await serving.events(generate_request()))[-1].HasField("result")


async def test_a_server_that_drains_refuses_new_work_and_finishes_the_old(serving: Serving) -> None:
    running = await serving.hold_steps(generate_request())
    serving.engine.drain()
    refused = await serving.refusal(generate_request())
    assert (refused.code, refused.reason, refused.retry_after) == (grpc.StatusCode.UNAVAILABLE, "DRAINING", 1)
    serving.steps.open()
    assert [event async for event in running][-1].HasField("result")


async def test_what_the_grace_does_not_finish_ends_unavailable(serving: Serving) -> None:
    running = await serving.hold_steps(generate_request(max_new_tokens=100))
    stopping = asyncio.create_task(serving.engine.stop())
    await asyncio.sleep(0)
    serving.steps.open()
    refused = await refusal(running)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    await stopping


async def test_a_step_that_fails_ends_the_request_with_internal_and_the_rest_go_on(start: Start) -> None:
    class Picky(FakeModel):
        def step(self, plan: StepPlan) -> StepOutcome:
            if any(ord("!") in span.token_ids for span in plan.spans):
                raise RuntimeError("this model takes no exclamation mark")
            return super().step(plan)

    serving = await (await start(Serving(model=Picky()))).ready()
    good, bad = serving.stub.Generate(generate_request("good")), serving.stub.Generate(generate_request("bad!"))
    refused = await refusal(bad)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INTERNAL, "STEP_FAILED")
    assert [event async for event in good][-1].HasField("result")


async def test_an_engine_that_died_ends_every_stream_unavailable(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await serving.hold_steps(generate_request(max_new_tokens=100))

    def die(*_: object) -> None:
        raise MemoryError("no more")

    assert serving.engine._scheduler is not None
    monkeypatch.setattr(serving.engine._scheduler, "retire_finished", die)
    serving.steps.open()
    refused = await refusal(running)
    assert (refused.code, refused.reason, refused.retry_after) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_DIED", 5)
    assert (await serving.refusal(generate_request())).reason == "ENGINE_DIED"


async def test_a_chat_without_a_template_is_a_failed_precondition(start: Start) -> None:
    class Plain(FakeTokenizer):
        has_chat_template = False

        def render_chat(self, messages: object) -> str:
            raise ChatTemplateMissing("the model has no chat template")

    serving = await (await start(Serving(tokenizer=Plain()))).ready()
    request = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")]))
    refused = await serving.refusal(request)
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHAT_TEMPLATE_MISSING")


async def test_a_stream_that_ends_without_a_result_is_internal(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await serving.hold_steps(generate_request())
    (stream,) = serving.engine._streams.values()
    stream._open.clear()
    stream._arrived.set()
    serving.steps.open()
    refused = await refusal(running)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INTERNAL, "ENDED_WITHOUT_RESULT")


async def test_more_open_calls_than_allowed_are_refused(start: Start) -> None:
    serving = await (await start(Serving(server_settings=replace(SERVER, max_open_requests=2)))).ready()
    first = await serving.hold_steps(generate_request())
    second = serving.stub.Generate(generate_request())
    await eventually(lambda: serving.engine.load().waiting == 1)
    refused = await serving.refusal(generate_request())
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_OPEN_CALLS")
    assert refused.retry_after == 1
    serving.steps.open()
    for call in (first, second):
        assert [event async for event in call][-1].HasField("result")
    assert (await serving.events(generate_request()))[-1].HasField("result")

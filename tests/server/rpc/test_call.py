import asyncio
import random
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

from server.engine.events import Tokens
from server.rpc.call import SERVICE, Call
from server.rpc.request_id import METADATA_KEY
from tests.server.fakes import FakeTokenizer
from tests.server.rpc.relay import Relay
from tests.server.rpc.serving import (
    PATIENCE,
    SERVER,
    Gate,
    GenerateCall,
    Serving,
    Start,
    eventually,
    generate_request,
)

Lines = list[MutableMapping[str, Any]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    with capture_logs() as captured:
        yield captured


async def echoed_id(call: GenerateCall) -> str | bytes:
    async for _ in call:
        pass
    return dict(await call.trailing_metadata())[METADATA_KEY]


async def test_the_request_id_is_the_field_else_the_metadata_else_made(serving: Serving) -> None:
    metadata = ((METADATA_KEY, "from metadata"),)
    stub = serving.stub
    assert await echoed_id(stub.Generate(generate_request(request_id="from field"), metadata=metadata)) == "from field"
    assert await echoed_id(stub.Generate(generate_request(), metadata=metadata)) == "from metadata"
    made = [await echoed_id(stub.Generate(generate_request())) for _ in range(2)]
    assert all(made)
    assert made[0] != made[1]


async def test_every_end_of_every_method_echoes_the_request_id(serving: Serving) -> None:
    metadata = ((METADATA_KEY, "mine"),)
    requests = {
        "Generate": pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(top_p=2)),
        "Complete": pb.CompleteRequest(),
        "Tokenize": pb.TokenizeRequest(),
        "Detokenize": pb.DetokenizeRequest(token_ids=[9999]),
        "GetModel": pb.GetModelRequest(),
        "GetLoad": pb.GetLoadRequest(),
    }
    for method, request in requests.items():
        path = f"/treadle.v1.GenerationService/{method}"
        start_call = serving.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        call = start_call(request.SerializeToString(), metadata=metadata)
        await call.code()
        assert dict(await call.trailing_metadata())[METADATA_KEY] == "mine", method


async def test_a_refused_request_is_answered_by_the_name_it_gave_itself(serving: Serving) -> None:
    nothing = pb.OutputOptions(omit_text=True, omit_token_ids=True)
    refused = await serving.refusal(pb.GenerateRequest(request_id="mine", output=nothing))
    assert refused.trailing[METADATA_KEY] == "mine"
    refused = await serving.refusal(pb.GenerateRequest(request_id="mine"))
    assert refused.trailing[METADATA_KEY] == "mine"


@pytest.mark.parametrize("request_id", ["x" * 129, "caf\xe9", "tab\t"])
async def test_a_request_id_that_cannot_be_echoed_is_refused(serving: Serving, request_id: str) -> None:
    refused = await serving.refusal(generate_request(request_id=request_id))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "request_id")


async def test_a_request_id_in_the_metadata_that_is_too_long_is_refused(serving: Serving) -> None:
    refused = await serving.refusal(generate_request(), metadata=((METADATA_KEY, "x" * 129),))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "metadata x-request-id")


async def test_the_line_of_a_request_has_counts_and_times_and_no_text(lines: Lines, serving: Serving) -> None:
    await serving.events(generate_request("a secret", max_new_tokens=5, request_id="mine"))
    await eventually(lambda: lines)
    (line,) = lines
    assert line["event"] == "request"
    assert (line["request_id"], line["rpc"], line["status"]) == ("mine", "Generate", "OK")
    assert (line["prompt_tokens"], line["completion_tokens"], line["finish"]) == (9, 5, "MAX_NEW_TOKENS")
    assert line["peer"].startswith("ipv4:127.0.0.1")
    assert line["total"] >= line["time_to_first_token"] >= line["queued"] >= 0
    assert "secret" not in str(line)


async def test_a_refused_request_is_a_line_that_says_why_without_its_text(lines: Lines, serving: Serving) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="secret", content="secret")])
    await serving.refusal(pb.GenerateRequest(chat=chat))
    (line,) = lines
    assert (line["status"], line["reason"]) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert line["field"] == "chat.messages[0].role"
    assert "secret" not in str(line)


async def test_prompts_and_text_are_logged_only_when_asked_for(lines: Lines, start: Start) -> None:
    serving = await (await start(Serving(server_settings=replace(SERVER, log_prompts=True)))).ready()
    answer = await serving.stub.Complete(pb.CompleteRequest(generate=generate_request("a secret")))
    (line,) = lines
    assert line["prompt"] == "<257>a secret"
    assert line["text"] == answer.completions[0].text


def test_the_texts_of_several_generations_are_logged_in_their_order(lines: Lines) -> None:
    call = Call(SERVICE, "Generate", "peer", texts={})
    for index, text in ((1, "b"), (0, "a"), (1, "c")):
        call.hear(index, Tokens((1,), text))
    call.log_end()
    assert lines[0]["text"] == "a\nbc"


async def test_a_mistake_in_the_server_is_internal_with_a_traceback_in_the_log_only(
    lines: Lines, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("inside story")

    monkeypatch.setattr(serving.engine, "submit", fail)
    refused = await serving.refusal(generate_request())
    assert (refused.code, refused.reason) == (grpc.StatusCode.INTERNAL, "UNEXPECTED")
    assert "inside story" not in refused.message
    mistake, line = lines
    assert isinstance(mistake["exc_info"], KeyError)
    assert line["status"] == "INTERNAL"


class SlowTokenizer(FakeTokenizer):
    def __init__(self) -> None:
        self.gate = Gate()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.gate()
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_a_call_cancelled_while_it_is_tokenized_never_reaches_the_engine(start: Start, lines: Lines) -> None:
    tokenizer = SlowTokenizer()
    serving = await (await start(Serving(tokenizer=tokenizer))).ready()
    tokenizer.gate.close()
    call = serving.stub.Generate(generate_request())
    await asyncio.to_thread(tokenizer.gate.reached.wait, PATIENCE)
    assert await serving.health_of("") == "SERVING"
    call.cancel()
    await eventually(lambda: lines)
    assert lines[0]["status"] == "CANCELLED"
    tokenizer.gate.open()
    await serving.server.idle()
    assert (await serving.events(generate_request()))[-1].HasField("result")
    assert serving.engine.load().tokens_generated == 8


async def test_a_call_cancelled_while_it_waits_leaves_the_queue(start: Start, lines: Lines) -> None:
    settings = replace(Serving().engine_settings, max_slots=1)
    serving = await (await start(Serving(engine_settings=settings))).ready()
    running = await serving.hold_steps(generate_request())
    waiting = serving.stub.Generate(generate_request())
    await eventually(lambda: serving.engine.load().waiting == 1)
    waiting.cancel()
    await eventually(lambda: lines)
    serving.steps.open()
    assert [event async for event in running][-1].HasField("result")
    await eventually(serving.is_empty)
    assert serving.engine.load().tokens_generated == 8


async def test_a_call_cancelled_in_its_prefill_frees_its_blocks(serving: Serving, lines: Lines) -> None:
    call = await serving.hold_steps(generate_request("x" * 100))
    call.cancel()
    await eventually(lambda: lines)
    serving.steps.open()
    await eventually(serving.is_empty)
    assert serving.engine.load().tokens_generated == 0


async def test_a_call_cancelled_while_it_streams_frees_its_slot(serving: Serving, lines: Lines) -> None:
    async for event in (call := serving.stub.Generate(generate_request(max_new_tokens=100))):
        if event.HasField("tokens"):
            serving.steps.close()
            break
    call.cancel()
    await eventually(lambda: lines)
    assert lines[0]["status"] in ("CANCELLED", "OK")
    serving.steps.open()
    await eventually(serving.is_empty)


async def test_a_passed_deadline_ends_the_work_and_says_so(serving: Serving, lines: Lines) -> None:
    serving.steps.close()
    call = serving.stub.Generate(generate_request(max_new_tokens=100), timeout=0.2)
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: lines)
    assert lines[0]["status"] == "DEADLINE_EXCEEDED"
    serving.steps.open()
    await eventually(serving.is_empty)
    assert serving.engine.load().tokens_generated <= 1


async def test_a_cancelled_complete_stops_too(serving: Serving, lines: Lines) -> None:
    serving.steps.close()
    call = serving.stub.Complete(pb.CompleteRequest(generate=generate_request(max_new_tokens=100)))
    await asyncio.to_thread(serving.steps.reached.wait, PATIENCE)
    call.cancel()
    await eventually(lambda: lines)
    serving.steps.open()
    await eventually(serving.is_empty)
    assert serving.engine.load().tokens_generated <= 1


async def test_a_broken_connection_ends_the_work(serving: Serving, lines: Lines) -> None:
    async with Relay(serving.port) as relay, grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
        serving.steps.close()
        call = GenerationServiceStub(channel).Generate(generate_request(max_new_tokens=100))
        await asyncio.to_thread(serving.steps.reached.wait, PATIENCE)
        relay.cut()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: lines)
    assert lines[0]["status"] == "CANCELLED"
    serving.steps.open()
    await eventually(serving.is_empty)
    await serving.server.idle()


async def test_whatever_clients_do_every_call_ends_and_nothing_is_left(serving: Serving) -> None:
    chance = random.Random(0)

    async def client() -> grpc.StatusCode:
        call = serving.stub.Generate(
            generate_request("x" * chance.randint(1, 60), max_new_tokens=chance.randint(1, 60)),
            timeout=chance.choice([None, None, 0.001, 0.02, 0.1]),
        )
        if chance.random() < 0.4:
            asyncio.get_running_loop().call_later(chance.random() / 10, call.cancel)
        try:
            events = [event async for event in call]
        except (asyncio.CancelledError, grpc.aio.AioRpcError):
            return await call.code()
        assert events[-1].HasField("result")
        return grpc.StatusCode.OK

    async with asyncio.timeout(PATIENCE):
        codes = await asyncio.gather(*(client() for _ in range(300)))
        await serving.server.idle()
    expected = {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert set(codes) - {grpc.StatusCode.RESOURCE_EXHAUSTED} == expected
    await eventually(serving.is_empty)

from dataclasses import replace

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.engine.errors import InvalidArgument
from server.rpc import from_wire
from tests.server.fakes import VOCABULARY_SIZE, describe
from tests.server.rpc.serving import Serving, generate_request


def invalid_requests() -> dict[str, pb.GenerateRequest]:
    """Requests that must be refused, by the field that is to blame."""

    def with_(change: pb.GenerateRequest) -> pb.GenerateRequest:
        request = generate_request()
        request.MergeFrom(change)
        return request

    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="a"), pb.ChatMessage(role="robot", content="b")])
    refused_chat = pb.Chat(messages=[pb.ChatMessage(role="assistant", content="a")])
    invalid_duration = pb.StoppingCriteria()
    invalid_duration.time_limit.seconds, invalid_duration.time_limit.nanos = 1, -1
    negative = pb.StoppingCriteria()
    negative.time_limit.seconds = -1
    return {
        "input": pb.GenerateRequest(),
        "cache_salt": with_(pb.GenerateRequest(cache_salt="x" * 129)),
        "prompt": with_(pb.GenerateRequest(prompt="x" * 127)),
        "prompt_token_ids": with_(pb.GenerateRequest(prompt_token_ids=pb.TokenIds())),
        "prompt_token_ids.ids": with_(pb.GenerateRequest(prompt_token_ids=pb.TokenIds(ids=[VOCABULARY_SIZE]))),
        "chat.messages": with_(pb.GenerateRequest(chat=refused_chat)),
        "chat.messages[1].role": with_(pb.GenerateRequest(chat=chat)),
        "sampling.temperature": with_(pb.GenerateRequest(sampling=pb.SamplingParams(temperature=-0.5))),
        "sampling.top_p": with_(pb.GenerateRequest(sampling=pb.SamplingParams(top_p=0))),
        "stopping.max_new_tokens": with_(pb.GenerateRequest(stopping=pb.StoppingCriteria(max_new_tokens=500))),
        "stopping.min_new_tokens": with_(pb.GenerateRequest(stopping=pb.StoppingCriteria(min_new_tokens=9))),
        "stopping.stop": with_(pb.GenerateRequest(stopping=pb.StoppingCriteria(stop=["x"] * 17))),
        "stopping.stop[1]": with_(pb.GenerateRequest(stopping=pb.StoppingCriteria(stop=["x", ""]))),
        "stopping.stop_token_ids": with_(pb.GenerateRequest(stopping=pb.StoppingCriteria(stop_token_ids=[999]))),
        "stopping.time_limit": with_(pb.GenerateRequest(stopping=invalid_duration)),
        "stopping.time_limit ": with_(pb.GenerateRequest(stopping=negative)),
        "output": with_(pb.GenerateRequest(output=pb.OutputOptions(omit_text=True, omit_token_ids=True))),
        "request_id": with_(pb.GenerateRequest(request_id="line\nbreak")),
    }


@pytest.mark.parametrize(("field", "request_"), invalid_requests().items(), ids=list(invalid_requests()))
async def test_a_bad_field_is_named(serving: Serving, field: str, request_: pb.GenerateRequest) -> None:
    refused = await serving.refusal(request_)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert refused.field == field.strip()
    assert field.strip() in refused.message
    assert serving.is_empty()


async def test_complete_names_fields_as_its_own(serving: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=r"generate\.sampling\.top_p is 1\.1: must be"):
        await serving.stub.Complete(
            pb.CompleteRequest(generate=pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(top_p=1.1)))
        )
    with pytest.raises(grpc.aio.AioRpcError, match="generate is unset"):
        await serving.stub.Complete(pb.CompleteRequest())


async def test_tokenize_and_detokenize_name_what_is_wrong(serving: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="input is unset"):
        await serving.stub.Tokenize(pb.TokenizeRequest())
    with pytest.raises(grpc.aio.AioRpcError, match=r"token_ids\[1\] is 260: must be below the vocabulary size, 260"):
        await serving.stub.Detokenize(pb.DetokenizeRequest(token_ids=[1, 260]))


@given(st.integers(-400_000_000_000, 400_000_000_000), st.integers(-(2**31), 2**31 - 1))
def test_a_time_limit_is_a_valid_duration_above_zero_or_refused(seconds: int, nanos: int) -> None:
    message = pb.StoppingCriteria(time_limit=Duration(seconds=seconds, nanos=nanos))
    valid = abs(seconds) <= 315_576_000_000 and 0 <= nanos < 10**9 and (seconds > 0 or (seconds == 0 and nanos > 0))
    if valid:
        assert from_wire.stopping(message, describe(), prompt_length=1).time_limit == seconds + nanos / 1e9
    else:
        with pytest.raises(InvalidArgument, match=r"stopping\.time_limit"):
            from_wire.stopping(message, describe(), prompt_length=1)


@pytest.mark.parametrize(("prompt_length", "resolved"), [(101, 20), (108, 20), (109, None)])
def test_the_models_default_of_new_tokens_holds_where_it_fits(prompt_length: int, resolved: int | None) -> None:
    described = replace(describe(), default_max_new_tokens=20)
    found = from_wire.stopping(pb.StoppingCriteria(), described, prompt_length)
    assert found.max_new_tokens == resolved

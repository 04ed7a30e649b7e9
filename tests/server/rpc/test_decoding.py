import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.engine.errors import InvalidArgument
from server.rpc.decoding import decode
from server.rpc.errors import MalformedMessage
from tests.server.rpc.serving import Serving, generate_request, refusal

FULL = pb.CompleteRequest(
    generate=pb.GenerateRequest(
        request_id="~0~",
        chat=pb.Chat(messages=[pb.ChatMessage(role="~1~", content="~2~"), pb.ChatMessage(role="~3~", content="~4~")]),
        stopping=pb.StoppingCriteria(stop=["~5~", "~6~"]),
    )
)
TEXTS = {
    b"~0~": "generate.request_id",
    b"~1~": "generate.chat.messages[0].role",
    b"~2~": "generate.chat.messages[0].content",
    b"~3~": "generate.chat.messages[1].role",
    b"~4~": "generate.chat.messages[1].content",
    b"~5~": "generate.stopping.stop[0]",
    b"~6~": "generate.stopping.stop[1]",
}


@pytest.mark.parametrize(("text", "field"), TEXTS.items(), ids=TEXTS.values())
def test_text_that_is_not_utf_8_is_named(text: bytes, field: str) -> None:
    raw = FULL.SerializeToString().replace(text, b"a\xff~")
    with pytest.raises(InvalidArgument, match="must be valid UTF-8") as raised:
        decode(pb.CompleteRequest, raw)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("message_class", "raw", "field"),
    [
        (pb.GetModelRequest, b"\x08\x01", "1"),
        (pb.GenerateRequest, b"\x2a\x03\xb8\x01\x01", "sampling.23"),
        (
            pb.GenerateRequest,
            pb.GenerateRequest(chat=pb.Chat(template_options={"o": {"p": {}}}))  # type: ignore[arg-type]
            .SerializeToString()
            .replace(b"p\x12\x02*\x00", b"p\x12\x02@\x01"),
            "chat.template_options.fields[o].struct_value.fields[p].8",
        ),
        (pb.GenerateRequest, b"\x22\x05\x0a\x03\x98\x06\x01", "chat.messages[0].99"),
        (pb.GenerateRequest, b"\x32\x04\x3a\x02\x18\x01", "stopping.time_limit.3"),
    ],
)
def test_a_field_this_server_does_not_know_is_refused_at_any_depth(
    message_class: type[Message], raw: bytes, field: str
) -> None:
    with pytest.raises(InvalidArgument, match="no field of this number") as raised:
        decode(message_class, raw)
    assert raised.value.field == field


@given(st.binary(max_size=200))
@example(b"\x12\x40a")
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    try:
        message = decode(pb.GenerateRequest, raw)
    except (InvalidArgument, MalformedMessage):
        return
    assert decode(pb.GenerateRequest, message.SerializeToString()) == message


@pytest.mark.parametrize(
    ("raw", "reason", "field"),
    [
        (b"\x12\x02a\xff", "INVALID_ARGUMENT", "prompt"),
        (b"\x22\x09\x0a\x07\x0a\x01u\x12\x02\xc3\x28", "INVALID_ARGUMENT", "chat.messages[0].content"),
        (b"\x12\x01a\x2a\x03\xb8\x01\x01", "INVALID_ARGUMENT", "sampling.23"),
        (b"\x12\x01a\x98\x06\x01", "INVALID_ARGUMENT", "99"),
        (b"\x12\x40a", "MALFORMED_MESSAGE", None),
    ],
)
async def test_bytes_that_are_no_request_are_refused(
    serving: Serving, raw: bytes, reason: str, field: str | None
) -> None:
    generate = serving.channel.unary_stream(
        "/treadle.v1.GenerationService/Generate",
        request_serializer=bytes,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    refused = await refusal(generate(raw))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert field is None or refused.field == field


@pytest.mark.parametrize("excess", [1, 1 << 20])
async def test_a_message_that_is_too_large_is_refused(serving: Serving, excess: int) -> None:
    limit = serving.server_settings.max_message_bytes
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await serving.events(generate_request("x" * (limit + excess)))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_message_a_little_too_large_learns_the_limit(serving: Serving) -> None:
    refused = await serving.refusal(generate_request("x" * serving.server_settings.max_message_bytes))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
    assert str(serving.server_settings.max_message_bytes) in refused.message
    assert refused.retry_after is None

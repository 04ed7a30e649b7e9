import json
import math
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.engine.chat import MAX_MESSAGES, MAX_TEMPLATE_BYTES, MAX_TOOL_BYTES, MAX_TOOLS, Chat, ChatMessage, ToolCall
from server.engine.errors import InvalidArgument
from server.rpc.chat_from_wire import chat
from tests.server.fakes import BOS, FakeTokenizer
from tests.server.rpc.serving import Refusal, Serving, Start, generate_request

USER = {"role": "user", "content": "hi"}
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
    max_leaves=8,
)


def chat_message(**fields: Any) -> pb.Chat:
    return ParseDict({"messages": [USER], **fields}, pb.Chat())


def with_options(options: Struct) -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], template_options=options)


def test_every_part_of_a_chat_is_read() -> None:
    message = chat_message(
        messages=[
            USER,
            {"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments_json": '{"x": [1, 2.5]}'}]},
            {"role": "tool", "content": "ok", "tool_call_id": "1"},
            {"role": "assistant", "content": "So"},
        ],
        tools=[{"name": "f", "description": "d", "parameters_json": '{"b": 1, "a": {"d": null, "c": "é"}}'}],
        template_options={"a": 1},
        continue_final_message=True,
        template="t",
    )
    read = chat(message)
    assert read.messages[1] == ChatMessage("assistant", "", (ToolCall("1", "f", {"x": [1, 2.5]}),))
    assert read.messages[2] == ChatMessage("tool", "ok", (), "1")
    assert read.tools[0].description == "d"
    assert json.dumps(read.tools[0].parameters, ensure_ascii=False) == '{"b": 1, "a": {"d": null, "c": "é"}}'
    assert (read.template_options, read.continue_final_message, read.template) == ({"a": 1}, True, "t")
    assert chat(chat_message()) == Chat((ChatMessage("user", "hi"),))


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_json_text_is_read_in_its_own_order(value: dict[str, Any]) -> None:
    read = chat(chat_message(tools=[{"name": "f", "parameters_json": json.dumps(value)}])).tools[0].parameters
    assert json.dumps(read) == json.dumps(value)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_template_options_are_read_with_whole_numbers_as_ints(value: dict[str, Any]) -> None:
    read = chat(with_options(ParseDict(value, Struct()))).template_options
    assert read == value
    assert list(read) == sorted(value)
    for name, number in value.items():
        if isinstance(number, int) and not isinstance(number, bool):
            assert type(read[name]) is int


INVALID = {
    "no object": ("[1]", "must be a JSON object"),
    "cut off": ('{"a": ', "Expecting value at character 6"),
    "nothing": ("{}{}", "Extra data"),
    "NaN": ('{"a": NaN}', "NaN is no JSON number"),
    "infinity": ('{"a": [-Infinity]}', "-Infinity is no JSON number"),
    "too large": ('{"a": 1e999}', "within the range of a double"),
    "digits": ('{"a": ' + "1" * 5000 + "}", "integer string"),
    "twice": ('{"a": 1, "a": 2}', 'the key "a" must appear once'),
    "half a pair": (r'{"a": "\ud800"}', "surrogate"),
    "deep": ('{"a":' + "[" * 30_000 + "]" * 30_000 + "}", "nested less deeply"),
}


@pytest.mark.parametrize(("text", "limit"), INVALID.values(), ids=list(INVALID))
def test_json_that_a_template_could_not_show_is_refused(text: str, limit: str) -> None:
    with pytest.raises(InvalidArgument, match=limit) as refused:
        chat(chat_message(tools=[{"name": "f"}, {"name": "g", "parameters_json": text}]))
    assert refused.value.field == "chat.tools[1].parameters_json"
    call = {"id": "1", "name": "f", "arguments_json": text}
    with pytest.raises(InvalidArgument, match=limit) as refused:
        chat(chat_message(messages=[USER, {"role": "assistant", "tool_calls": [call]}]))
    assert refused.value.field == "chat.messages[1].tool_calls[0].arguments_json"


def test_the_arguments_of_a_call_must_be_there() -> None:
    with pytest.raises(InvalidArgument, match=r"tool_calls\[0\]\.arguments_json is not JSON"):
        chat(chat_message(messages=[{"role": "assistant", "tool_calls": [{"name": "f"}]}]))


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("chat.messages", {"messages": [USER] * (MAX_MESSAGES + 1)}),
        ("chat.tools", {"tools": [{"name": "f"}] * (MAX_TOOLS + 1)}),
        (
            "chat.tools[0].parameters_json",
            {"tools": [{"name": "f", "parameters_json": json.dumps({"a": "x" * MAX_TOOL_BYTES})}]},
        ),
        ("chat.template", {"template": "x" * (MAX_TEMPLATE_BYTES + 1)}),
    ],
)
def test_what_is_too_much_is_refused(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="must be at most") as refused:
        chat(chat_message(**fields))
    assert refused.value.field == field


def test_as_much_as_is_allowed_is_taken() -> None:
    read = chat(chat_message(messages=[USER] * MAX_MESSAGES, tools=[{"name": "f"}] * MAX_TOOLS))
    assert (len(read.messages), len(read.tools)) == (MAX_MESSAGES, MAX_TOOLS)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_options_are_finite_and_have_values(number: float) -> None:
    for value in (Value(number_value=number), Value()):
        options = Struct()
        options.fields["x" * 200].list_value.values.append(value)
        with pytest.raises(InvalidArgument) as refused:
            chat(with_options(options))
        assert refused.value.field == f"chat.template_options.fields[{'x' * 64}...]"


async def chat_refusal(serving: Serving, message: pb.Chat) -> Refusal:
    request = generate_request()
    request.chat.CopyFrom(message)
    return await serving.refusal(request)


async def test_a_bad_chat_is_an_invalid_argument_that_names_its_field(serving: Serving) -> None:
    refused = await chat_refusal(serving, chat_message(tools=[{"name": "f"}]))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert refused.field == "chat.tools"
    assert (
        await chat_refusal(serving, chat_message(continue_final_message=True))
    ).field == "chat.continue_final_message"


async def test_a_template_of_the_requests_own_is_refused_unless_the_server_allows_it(
    serving: Serving, start: Start
) -> None:
    message = chat_message(template="{{ messages }}")
    refused = await chat_refusal(serving, message)
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "TEMPLATE_NOT_ALLOWED")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await serving.stub.Tokenize(pb.TokenizeRequest(chat=message))
    assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED

    class Permissive(FakeTokenizer):
        allows_request_templates = True

        def render_chat(self, chat: Chat) -> str:
            return chat.template or ""

    allowing = await (await start(Serving(tokenizer=Permissive()))).ready()
    answer = await allowing.stub.Tokenize(pb.TokenizeRequest(chat=message))
    assert bytes(answer.token_ids) == b"{{ messages }}"


async def test_a_chat_is_tokenized_as_generate_would(serving: Serving) -> None:
    message = chat_message(messages=[USER, {"role": "assistant", "content": "So "}], continue_final_message=True)
    answer = await serving.stub.Tokenize(pb.TokenizeRequest(chat=message))
    assert bytes(answer.token_ids) == b"user: hi\nassistant: So "


async def test_special_tokens_are_added_to_a_text_unless_asked_not_to(serving: Serving) -> None:
    for add, expected in ((None, [BOS, 97]), (True, [BOS, 97]), (False, [97])):
        answer = await serving.stub.Tokenize(pb.TokenizeRequest(text="a", add_special_tokens=add))
        assert list(answer.token_ids) == expected
    for add in (True, False):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await serving.stub.Tokenize(pb.TokenizeRequest(chat=chat_message(), add_special_tokens=add))
        refused = Refusal.of(raised.value)
        assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "add_special_tokens")

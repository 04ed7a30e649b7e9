"""Conversations, tools and what the template is given."""

import json
from typing import Any

import pytest
import treadle
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from treadle import Chat, ChatMessage, GenerateOptions, Tool, requests
from treadle.v1 import generation_pb2 as pb

HI = [ChatMessage("user", "hi")]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda values: st.lists(values) | st.dictionaries(TEXT, values),
    max_leaves=10,
)


def test_a_turn_is_a_message_or_a_mapping_of_its_fields() -> None:
    call = {"id": "call00001", "name": "sum", "arguments_json": "{}"}
    turns: Chat = [
        ChatMessage("system", "be"),
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "call00001"},
    ]
    messages = [
        pb.ChatMessage(role="system", content="be"),
        pb.ChatMessage(role="user", content="hi"),
        pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(**call)]),
        pb.ChatMessage(role="tool", content="3", tool_call_id="call00001"),
    ]
    assert list(requests.generate(chat=turns).chat.messages) == messages
    assert list(requests.tokenize(chat=turns).chat.messages) == messages


@pytest.mark.parametrize("turn", [{"role": "user"}, {"role": "user", "content": "hi", "name": "me"}])
def test_a_mapping_with_other_fields_is_refused(turn: dict[str, str]) -> None:
    with pytest.raises(TypeError, match=r"content|name"):
        requests.generate(chat=[turn])


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (None, ""),
        ({"z": 1, "a": {"y": 2, "b": 3}}, '{"z": 1, "a": {"y": 2, "b": 3}}'),
        ('{"z":1}', '{"z":1}'),
    ],
)
def test_a_tools_parameters_are_json_with_the_keys_in_their_order(parameters: Any, text: str) -> None:
    (tool,) = requests.generate(chat=HI, tools=[Tool("f", parameters=parameters)]).chat.tools
    assert (tool.name, tool.description, tool.parameters_json) == ("f", "", text)


@given(options=st.dictionaries(TEXT, JSON))
def test_template_options_arrive_as_they_are(options: dict[str, Any]) -> None:
    sent = requests.generate(chat=HI, template_options=options).chat
    assert sent.HasField("template_options")
    # Infinity aside, which is not generated, the wire's numbers are float64, as JSON's usually are.
    assert json_format.MessageToDict(sent.template_options) == options


@pytest.mark.parametrize("value", [2**53 + 1, [-(2**60)], {"deep": (1, {"er": 2**64})}])
def test_an_integer_that_would_be_rounded_is_refused_by_name(value: object) -> None:
    with pytest.raises(treadle.InvalidRequest, match="integers must be from") as raised:
        requests.generate(chat=HI, template_options={"depth": value})
    assert raised.value.violations[0].field == "chat.template_options.depth"


@pytest.mark.parametrize("value", [object(), {1, 2}, "\ud800", b"x"])
def test_a_template_option_that_is_not_json_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"chat\.template_options\.depth is .* must be a JSON value"):
        requests.generate(chat=HI, template_options={"depth": value})


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [Tool("f")]},
        {"template_options": {"a": 1}},
        {"continue_final_message": True},
        {"template": "{{ messages }}"},
    ],
)
def test_what_goes_with_a_chat_is_refused_with_a_prompt(options: GenerateOptions) -> None:
    (name,) = options
    with pytest.raises(TypeError, match=f"{name} comes with a chat only"):
        requests.generate("hi", **options)
    with pytest.raises(TypeError, match=f"{name} comes with a chat only"):
        requests.complete(inputs=["hi", [1]], **options)
    with pytest.raises(TypeError, match=f"{name} comes with a chat only"):
        requests.tokenize("hi", **options)  # type: ignore[misc] # the names are of both


def test_a_calls_arguments_can_be_read() -> None:
    assert treadle.ToolCall("call00001", "sum", json.dumps({"a": [1]})).arguments == {"a": [1]}


def test_the_field_of_a_bad_turn_is_named() -> None:
    with pytest.raises(treadle.InvalidRequest) as raised:
        requests.generate(chat=[*HI, ChatMessage("user", "\ud800")])
    assert raised.value.violations[0].field == "chat.messages[1].content"

"""Options to messages: every option arrives, and what cannot be carried is refused by the field's name."""

from collections.abc import Iterator

import pytest
import treadle
from google.protobuf.message import Message
from treadle import ChatMessage, GenerateOptions, LogprobsOf, Tool, ToolCall, ToolCallFormat, requests
from treadle.v1 import generation_pb2 as pb


def every_option() -> GenerateOptions:
    """Every one but another input than the chat, and `add_special_tokens`, which goes with a prompt only."""
    call = ToolCall("call00001", "sum", '{"a":1}')
    return GenerateOptions(
        chat=[ChatMessage("assistant", "so", tool_calls=[call]), ChatMessage("tool", "1", tool_call_id=call.id)],
        tools=[Tool("sum", "adds", {"type": "object"})],
        template_options={"enable_thinking": False},
        continue_final_message=True,
        template="{{ messages }}",
        truncate_prompt_tokens=77,
        temperature=0.5,
        top_p=0.25,
        top_k=0,
        min_p=0.125,
        typical_p=0.75,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias={3: -100.0, 4: 0.5},
        forbidden_sequences=[[1, 2], (3,)],
        seed=2**64 - 1,
        n=3,
        max_new_tokens=9,
        min_new_tokens=2,
        stop=["a", "b"],
        stop_token_ids=[3, 4],
        ignore_eos=True,
        include_stop_text=True,
        time_limit=1.5,
        omit_token_ids=True,
        omit_text=True,
        logprobs=0,
        prompt_logprobs=20,
        logprobs_of=LogprobsOf.PROCESSED,
        keep_special_tokens=True,
        echo_prompt=True,
        usage=True,
        chunk_interval=0.25,
        parse_tool_calls=ToolCallFormat.MISTRAL,
        parse_reasoning=True,
        constraint=treadle.Regex("a+"),
        priority=-100,
        cache_salt="salt",
        request_id="mine",
    )


def expected() -> pb.GenerateRequest:
    chat = pb.Chat(
        messages=[
            pb.ChatMessage(
                role="assistant",
                content="so",
                tool_calls=[pb.ToolCall(id="call00001", name="sum", arguments_json='{"a":1}')],
            ),
            pb.ChatMessage(role="tool", content="1", tool_call_id="call00001"),
        ],
        tools=[pb.Tool(name="sum", description="adds", parameters_json='{"type": "object"}')],
        continue_final_message=True,
        template="{{ messages }}",
    )
    chat.template_options.update({"enable_thinking": False})
    message = pb.GenerateRequest(
        request_id="mine",
        chat=chat,
        sampling=pb.SamplingParams(
            temperature=0.5,
            top_p=0.25,
            top_k=0,
            seed=2**64 - 1,
            min_p=0.125,
            typical_p=0.75,
            repetition_penalty=1.5,
            presence_penalty=-0.5,
            frequency_penalty=2.0,
            logit_bias={3: -100.0, 4: 0.5},
            forbidden_sequences=[pb.TokenIds(ids=[1, 2]), pb.TokenIds(ids=[3])],
            n=3,
        ),
        stopping=pb.StoppingCriteria(
            max_new_tokens=9,
            min_new_tokens=2,
            stop=["a", "b"],
            stop_token_ids=[3, 4],
            ignore_eos=True,
            include_stop_text=True,
        ),
        output=pb.OutputOptions(
            omit_token_ids=True,
            omit_text=True,
            logprobs=0,
            prompt_logprobs=20,
            logprobs_of=pb.LOGPROBS_OF_PROCESSED,
            keep_special_tokens=True,
            echo_prompt=True,
            usage=True,
            parse_tool_calls=pb.TOOL_CALL_FORMAT_MISTRAL,
            parse_reasoning=True,
        ),
        cache_salt="salt",
        constraint=pb.Constraint(regex="a+"),
        truncate_prompt_tokens=77,
        priority=-100,
    )
    message.stopping.time_limit.FromMilliseconds(1500)
    message.output.chunk_interval.FromMilliseconds(250)
    return message


def unset_fields(message: Message, path: str = "") -> Iterator[str]:
    """Paths of the fields that are not set, in the messages that are there."""
    there = {field.name for field, _ in message.ListFields()}
    for field in message.DESCRIPTOR.fields:
        if field.name not in there:
            yield path + field.name
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.file is message.DESCRIPTOR.file:
            parts = value if field.is_repeated else [value]
            if not field.message_type.GetOptions().map_entry:
                for part in parts:
                    yield from unset_fields(part, f"{path}{field.name}.")


def test_every_option_arrives() -> None:
    assert requests.generate(**every_option()) == expected()


def test_every_field_of_the_request_can_be_set() -> None:
    assert set(unset_fields(requests.generate(**every_option()))) == {
        "prompt",
        "prompt_token_ids",
        "add_special_tokens",
        "chat.messages.tool_calls",  # of the tool's message
        "chat.messages.tool_call_id",  # of the assistant's message
        "sampling.best_of",  # of Complete only
        "constraint.json_schema",
        "constraint.json_object",
        "constraint.grammar",
        "constraint.choice",
    }
    given = {"prompt_token_ids", "add_special_tokens", *every_option()}
    assert given == GenerateOptions.__optional_keys__


@pytest.mark.parametrize("add", [True, False])
def test_special_tokens_of_a_prompt_are_added_or_left_out_as_asked(add: bool) -> None:
    message = requests.generate("hi", add_special_tokens=add)
    assert message.HasField("add_special_tokens")
    assert message.add_special_tokens is add


def test_what_is_not_given_or_none_stays_unset() -> None:
    nothing: GenerateOptions = dict.fromkeys(GenerateOptions.__optional_keys__)  # type: ignore[assignment] # all None
    for message in (requests.generate("hi"), requests.generate("hi", **nothing)):
        message.ClearField("prompt")
        assert set(unset_fields(message)) == {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}


def test_an_option_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="there is no option best_of, temprature"):
        requests.generate("hi", temprature=1, best_of=2)  # type: ignore[call-arg] # what is tested


def test_an_empty_input_is_still_that_input() -> None:
    assert requests.generate("").WhichOneof("input") == "prompt"
    assert requests.generate(prompt_token_ids=[]).WhichOneof("input") == "prompt_token_ids"
    assert requests.generate(chat=[]).WhichOneof("input") == "chat"


@pytest.mark.parametrize(
    ("options", "field", "limit"),
    [
        ({"top_k": -1}, "sampling.top_k", "from 0 to 4294967295"),
        ({"seed": 2**64}, "sampling.seed", "from 0 to 18446744073709551615"),
        ({"logit_bias": {-1: 0.5}}, "sampling.logit_bias", "from 0 to 4294967295"),
        ({"forbidden_sequences": [[1], [2, -3]]}, "sampling.forbidden_sequences[1].ids[1]", "from 0 to 4294967295"),
        ({"max_new_tokens": 2**32}, "stopping.max_new_tokens", "from 0 to 4294967295"),
        ({"stop_token_ids": [1, -2]}, "stopping.stop_token_ids[1]", "from 0 to 4294967295"),
        ({"stop": ["ok", "\ud800"]}, "stopping.stop[1]", "without lone surrogates"),
        ({"cache_salt": "\ud800"}, "cache_salt", "without lone surrogates"),
        ({"time_limit": float("nan")}, "stopping.time_limit", "finite number of seconds"),
        ({"time_limit": float("inf")}, "stopping.time_limit", "finite number of seconds"),
        ({"chunk_interval": float("inf")}, "output.chunk_interval", "finite number of seconds"),
        ({"logprobs": -1}, "output.logprobs", "from 0 to 4294967295"),
        ({"priority": 2**31}, "priority", "from -2147483648 to 2147483647"),
        ({"constraint": treadle.Regex("\ud800")}, "constraint.regex", "without lone surrogates"),
        ({"constraint": treadle.JsonSchema({"minimum": float("inf")})}, "constraint.json_schema", "must be JSON"),
        ({"constraint": treadle.Choice(["a", "\ud800"])}, "constraint.choice.choices[1]", "without lone surrogates"),
    ],
)
def test_what_the_message_cannot_carry_is_refused_by_name(options: GenerateOptions, field: str, limit: str) -> None:
    with pytest.raises(treadle.InvalidRequest, match=limit) as raised:
        requests.generate("hi", **options)
    assert [violation.field for violation in raised.value.violations] == [field]
    assert str(raised.value).startswith(f"{field} is ")


def test_a_prompt_that_is_not_unicode_is_refused_by_name() -> None:
    with pytest.raises(treadle.InvalidRequest, match=r"prompt is '\\ud800': must be valid Unicode"):
        requests.generate("\ud800")


def test_exactly_one_input_is_taken() -> None:
    with pytest.raises(TypeError, match="exactly one of prompt, chat, prompt_token_ids"):
        requests.generate()
    with pytest.raises(TypeError, match="exactly one"):
        requests.generate("hi", prompt_token_ids=[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "hot"}, r"sampling\.temperature is 'hot'"),
        ({"logit_bias": {3: "much"}}, r"sampling\.logit_bias has 3: 'much'"),
        ({"forbidden_sequences": [["a"]]}, r"sampling\.forbidden_sequences\[0\]\.ids\[0\] is 'a'"),
        ({"constraint": "a+"}, r"constraint is 'a\+': must be a Constraint"),
        ({"constraint": treadle.JsonSchema({"const": {1}})}, r"constraint\.json_schema is .*not JSON serializable"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(options: GenerateOptions, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        requests.generate("hi", **options)


def test_an_enum_is_taken_by_its_member_or_its_value_and_nothing_else() -> None:
    assert requests.generate("hi", logprobs_of=LogprobsOf("raw")).output.logprobs_of == pb.LOGPROBS_OF_RAW
    with pytest.raises(ValueError, match="'rough' is not a valid LogprobsOf"):
        requests.generate("hi", logprobs_of="rough")  # type: ignore[arg-type] # what is tested


@pytest.mark.parametrize("member", ToolCallFormat)
def test_every_tool_call_format_is_the_apis_of_the_same_name(member: ToolCallFormat) -> None:
    sent = requests.generate("hi", parse_tool_calls=member).output.parse_tool_calls
    assert pb.ToolCallFormat.Name(sent) == f"TOOL_CALL_FORMAT_{member.name}"


@pytest.mark.parametrize("member", LogprobsOf)
def test_every_kind_of_logprobs_is_the_apis_of_the_same_name(member: LogprobsOf) -> None:
    sent = requests.generate("hi", logprobs_of=member).output.logprobs_of
    assert pb.LogprobsOf.Name(sent) == f"LOGPROBS_OF_{member.name}"


def test_one_stop_is_not_taken_for_its_letters() -> None:
    assert list(requests.generate("hi", stop="end").stopping.stop) == ["end"]


@pytest.mark.parametrize(("options", "n"), [({}, 1), ({"n": 1}, 1), ({"n": 4}, 4)])
def test_a_request_says_how_many_generations_it_asks_for(options: GenerateOptions, n: int) -> None:
    assert requests.generations(requests.generate("hi", **options)) == n

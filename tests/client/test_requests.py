"""Options to messages: every option arrives, and what cannot be carried is refused by the field's name."""

from collections.abc import Mapping

import pytest
import treadle
from treadle import ChatMessage, GenerateOptions, requests
from treadle.v1 import generation_pb2 as pb


def test_every_option_arrives() -> None:
    message = requests.generate(
        "hi",
        temperature=0.5,
        top_p=0.25,
        top_k=0,
        seed=2**64 - 1,
        max_new_tokens=9,
        min_new_tokens=2,
        stop=["a", "b"],
        stop_token_ids=[3, 4],
        ignore_eos=True,
        include_stop_text=True,
        time_limit=1.5,
        cache_salt="salt",
        request_id="mine",
        omit_token_ids=True,
        omit_text=True,
    )
    expected = pb.GenerateRequest(
        request_id="mine",
        prompt="hi",
        sampling=pb.SamplingParams(temperature=0.5, top_p=0.25, top_k=0, seed=2**64 - 1),
        stopping=pb.StoppingCriteria(
            max_new_tokens=9,
            min_new_tokens=2,
            stop=["a", "b"],
            stop_token_ids=[3, 4],
            ignore_eos=True,
            include_stop_text=True,
        ),
        output=pb.OutputOptions(omit_token_ids=True, omit_text=True),
        cache_salt="salt",
    )
    expected.stopping.time_limit.FromMilliseconds(1500)
    assert message == expected


def test_every_option_has_a_name_in_the_typed_options() -> None:
    parameters = set(requests.generate.__annotations__) - {"prompt", "return"}
    assert parameters == set(GenerateOptions.__annotations__)


def test_what_is_not_given_stays_unset() -> None:
    message = requests.generate("hi", temperature=None)
    assert not message.sampling.HasField("temperature")
    assert not message.sampling.HasField("top_k")
    assert not message.stopping.HasField("max_new_tokens")
    assert not message.stopping.HasField("time_limit")
    assert message.request_id == ""


def test_one_stop_is_not_taken_for_its_letters() -> None:
    assert list(requests.generate("hi", stop="end").stopping.stop) == ["end"]


def test_a_chat_is_messages_or_mappings() -> None:
    turns: list[ChatMessage | Mapping[str, str]] = [ChatMessage("system", "be"), {"role": "user", "content": "hi"}]
    messages = requests.generate(chat=turns).chat.messages
    assert [(message.role, message.content) for message in messages] == [("system", "be"), ("user", "hi")]
    assert requests.tokenize(None, turns).chat.messages == messages


def test_an_empty_input_is_still_that_input() -> None:
    assert requests.generate("").WhichOneof("input") == "prompt"
    assert requests.generate(prompt_token_ids=[]).WhichOneof("input") == "prompt_token_ids"
    assert requests.generate(chat=[]).WhichOneof("input") == "chat"


@pytest.mark.parametrize(
    ("options", "field", "limit"),
    [
        ({"top_k": -1}, "sampling.top_k", "from 0 to 4294967295"),
        ({"seed": 2**64}, "sampling.seed", "from 0 to 18446744073709551615"),
        ({"max_new_tokens": 2**32}, "stopping.max_new_tokens", "from 0 to 4294967295"),
        ({"stop_token_ids": [1, -2]}, "stopping.stop_token_ids[1]", "from 0 to 4294967295"),
        ({"stop": ["ok", "\ud800"]}, "stopping.stop[1]", "without lone surrogates"),
        ({"cache_salt": "\ud800"}, "cache_salt", "without lone surrogates"),
        ({"time_limit": float("nan")}, "stopping.time_limit", "finite number of seconds"),
        ({"time_limit": float("inf")}, "stopping.time_limit", "finite number of seconds"),
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
    with pytest.raises(TypeError, match="exactly one of text, chat"):
        requests.tokenize("hi", [ChatMessage("user", "hi")])


def test_a_value_of_the_wrong_type_is_named() -> None:
    with pytest.raises(TypeError, match=r"sampling\.temperature is 'hot'"):
        requests.generate("hi", temperature="hot")  # type: ignore[arg-type] # what is tested

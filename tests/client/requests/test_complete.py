"""Completions of one input or several."""

import pytest
import treadle
from treadle import ChatMessage, Tool, requests
from treadle.v1 import generation_pb2 as pb

from tests.client.requests.test_generate import every_option, expected


def test_one_input_is_the_request_of_generate_and_best_of() -> None:
    message = requests.complete(best_of=4, **every_option())
    assert not message.inputs
    assert message.generate.sampling.best_of == 4
    message.generate.sampling.ClearField("best_of")
    assert message.generate == expected()


def test_several_inputs_arrive_as_their_kinds_and_share_the_rest() -> None:
    chat = [ChatMessage("user", "hi")]
    message = requests.complete(inputs=["a", [1, 2], chat, ""], n=2, tools=[Tool("f")], priority=3)
    turns = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], tools=[pb.Tool(name="f")])
    assert message == pb.CompleteRequest(
        generate=pb.GenerateRequest(sampling=pb.SamplingParams(n=2), priority=3),
        inputs=[
            pb.Input(prompt="a"),
            pb.Input(prompt_token_ids=pb.TokenIds(ids=[1, 2])),
            pb.Input(chat=turns),
            pb.Input(prompt=""),
        ],
    )
    assert message.generate.WhichOneof("input") is None


def test_exactly_one_way_to_give_inputs_is_taken() -> None:
    with pytest.raises(TypeError, match="exactly one of prompt, chat, prompt_token_ids, inputs"):
        requests.complete("a", inputs=["b"])
    with pytest.raises(TypeError, match="exactly one"):
        requests.complete()


def test_one_prompt_is_not_taken_for_its_letters() -> None:
    with pytest.raises(TypeError, match="inputs is 'abc': must be a sequence of inputs"):
        requests.complete(inputs="abc")


def test_the_field_of_a_bad_input_is_named() -> None:
    with pytest.raises(treadle.InvalidRequest) as raised:
        requests.complete(inputs=["a", [5, -1]])
    assert raised.value.violations[0].field == "inputs[1].prompt_token_ids.ids[1]"


def test_an_option_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="there is no option best"):
        requests.complete("hi", best=2)  # type: ignore[call-arg] # what is tested

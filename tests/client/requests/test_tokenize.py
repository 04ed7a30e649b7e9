"""Requests between text and tokens."""

import pytest
import treadle
from treadle import ChatMessage, Tool, requests
from treadle.v1 import generation_pb2 as pb


def test_a_text_is_tokenized_with_or_without_special_tokens() -> None:
    assert requests.tokenize("hi") == pb.TokenizeRequest(text="hi")
    assert requests.tokenize("hi", add_special_tokens=False) == pb.TokenizeRequest(text="hi", add_special_tokens=False)


def test_a_chat_is_tokenized_as_generate_would() -> None:
    chat, tools = [ChatMessage("user", "hi")], [Tool("f", "does", {"type": "object"})]
    options = {"enable_thinking": True}
    tokenize = requests.tokenize(
        chat=chat, tools=tools, template_options=options, continue_final_message=True, template="x"
    )
    generate = requests.generate(
        chat=chat, tools=tools, template_options=options, continue_final_message=True, template="x"
    )
    assert tokenize.chat == generate.chat
    assert tokenize.chat.template == "x"


def test_exactly_one_input_is_taken() -> None:
    with pytest.raises(TypeError, match="exactly one of text, chat"):
        requests.tokenize("hi", chat=[ChatMessage("user", "hi")])
    with pytest.raises(TypeError, match="exactly one of text, chat"):
        requests.tokenize()


def test_an_option_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="there is no option priority"):
        requests.tokenize("hi", priority=1)  # type: ignore[call-arg] # what is tested


def test_ids_are_detokenized_with_or_without_special_tokens() -> None:
    assert requests.detokenize([1, 2], True) == pb.DetokenizeRequest(token_ids=[1, 2], keep_special_tokens=True)
    with pytest.raises(treadle.InvalidRequest, match=r"token_ids\[1\] is -1"):
        requests.detokenize([1, -1], False)

"""What two runs of a command may differ in, and what they may not."""

import json

import pytest

from tests.docs.answers import nearly, parsed


def chunk(*token_ids: int, text: str) -> str:
    return json.dumps({"tokens": {"token_ids": token_ids, "text": text}})


def test_how_a_stream_is_cut_into_chunks_does_not_count_and_its_text_does() -> None:
    result = '{"result": {"finish_reason": "STOP"}}'
    one, two = chunk(1, 2, text="ab"), chunk(1, text="a") + "\n" + chunk(2, text="b")
    assert parsed(one + result) == parsed(two + result)
    assert parsed(one + result) != parsed(chunk(1, 2, text="ac") + result)


def test_a_value_that_varies_must_be_there_all_the_same() -> None:
    assert parsed('{"seed": "1", "text": "a"}') == parsed('{"seed": "2", "text": "a"}')
    assert parsed('{"seed": "1", "text": "a"}') != parsed('{"text": "a"}')


@pytest.mark.parametrize(("logprob", "is_near"), [(-0.251, True), (-0.35, False)])
def test_numbers_are_compared_nearly(logprob: float, is_near: bool) -> None:
    printed = parsed(json.dumps({"logprobs": [{"logprob": logprob}]})).messages
    assert (printed == nearly([{"logprobs": [{"logprob": -0.25}]}])) is is_near


def test_an_error_follows_the_messages_of_the_stream_that_it_ends() -> None:
    answer = parsed('{"status": "SERVING"}\nERROR:\n  Code: DeadlineExceeded\n  Message: Deadline Exceeded\n')
    assert answer.messages == [{"status": "SERVING"}]
    assert answer == parsed(
        '{"status": "SERVING"}\nERROR:\n  Code: DeadlineExceeded\n  Message: context deadline exceeded'
    )
    assert answer != parsed('{"status": "SERVING"}\nERROR:\n  Code: Unavailable\n  Message: Deadline Exceeded\n')

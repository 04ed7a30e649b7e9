import re

from server.parsing.tool_call_id import new_tool_call_id


def test_an_id_has_nine_letters_and_digits_and_no_two_are_the_same() -> None:
    ids = [new_tool_call_id() for _ in range(1000)]
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", id_) for id_ in ids)
    assert len(set(ids)) == len(ids)

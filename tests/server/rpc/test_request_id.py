import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.errors import InvalidArgument
from server.rpc.request_id import check_request_id, new_request_id


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=128))
def test_printable_ascii_of_1_to_128_characters_is_taken_as_it_is(value: str) -> None:
    assert check_request_id("request_id", value) == value


@given(st.text().filter(lambda text: not (text.isascii() and text.isprintable() and 1 <= len(text) <= 128)))
def test_anything_else_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match="printable ASCII"):
        check_request_id("request_id", value)


def test_one_of_our_own_making_is_valid_and_new() -> None:
    made = {new_request_id() for _ in range(100)}
    assert len(made) == 100
    assert all(check_request_id("request_id", one) == one for one in made)

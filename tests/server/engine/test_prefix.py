from hypothesis import given
from hypothesis import strategies as st

from server.engine.prefix import next_key, root_key

blocks = st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4)


def key_of(salt: str, chain: list[list[int]]) -> bytes:
    key = root_key(salt)
    for token_ids in chain:
        key = next_key(key, token_ids)
    return key


@given(st.text(), st.lists(blocks, max_size=4), st.text(), st.lists(blocks, max_size=4))
def test_keys_are_equal_just_where_salt_and_all_tokens_so_far_are(
    salt: str, chain: list[list[int]], other_salt: str, other_chain: list[list[int]]
) -> None:
    same = (salt, chain) == (other_salt, other_chain)
    assert (key_of(salt, chain) == key_of(other_salt, other_chain)) == same
    assert key_of(salt, chain) == key_of(salt, list(chain))

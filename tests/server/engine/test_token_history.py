from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from server.engine.token_history import TokenHistory

few_ids = st.lists(st.integers(0, 9), max_size=20)


@given(few_ids, few_ids)
def test_each_distinct_id_of_prompt_and_output_is_there_once_with_its_count_in_the_output(
    prompt: list[int], output: list[int]
) -> None:
    history = TokenHistory(prompt)
    for token_id in output:
        history.append(token_id)
    assert history.token_ids == tuple(dict.fromkeys(prompt + output))
    counts = Counter(output)
    assert history.output_counts == tuple(counts[token_id] for token_id in history.token_ids)

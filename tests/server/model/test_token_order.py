import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from server.model.token_order import CHUNK, most_probable, rank_of


def logits_of(seed: int, rows: int, vocabulary: int, distinct: int) -> torch.Tensor:
    """Random, of few distinct values where `distinct` is small; both zeros and minus infinity are among them."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.standard_normal(distinct), [0.0, -0.0, -np.inf]]).astype(np.float32)
    return torch.from_numpy(rng.choice(values, size=(rows, vocabulary)))


def order_of(logits: list[float]) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 40 * CHUNK), st.sampled_from([1, 5, 10_000]), st.data())
def test_the_most_probable_come_falling_and_equals_by_id_however_few_are_asked_for(
    seed: int, rows: int, vocabulary: int, distinct: int, data: st.DataObject
) -> None:
    logits = logits_of(seed, rows, vocabulary, distinct)
    count = data.draw(st.integers(1, vocabulary) | st.integers(1, min(20, vocabulary)))
    found = most_probable(logits, count)
    assert found.tolist() == [order_of(row)[:count] for row in logits.tolist()]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 200), st.sampled_from([1, 5, 10_000]))
def test_a_rank_is_the_place_in_that_order(seed: int, rows: int, vocabulary: int, distinct: int) -> None:
    logits = logits_of(seed, rows, vocabulary, distinct)
    chosen = torch.randint(vocabulary, (rows,), generator=torch.Generator().manual_seed(seed))
    expected = [order_of(row).index(i) + 1 for row, i in zip(logits.tolist(), chosen.tolist(), strict=True)]
    assert rank_of(logits, chosen).tolist() == expected


@pytest.mark.parametrize("count", [1, 7])
def test_no_rows_have_no_order(count: int) -> None:
    assert most_probable(torch.empty(0, 1000), count).shape == (0, count)

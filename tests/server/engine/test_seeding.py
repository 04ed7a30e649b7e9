from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from server.engine.seeding import uniform


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32))
def test_a_number_is_in_range_and_always_the_same(seed: int, position: int) -> None:
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_numbers_are_uniform_along_positions_and_along_seeds() -> None:
    along_positions = [uniform(7, position) for position in range(20_000)]
    along_seeds = [uniform(seed, 3) for seed in range(20_000)]
    assert stats.kstest(along_positions, "uniform").pvalue > 1e-3
    assert stats.kstest(along_seeds, "uniform").pvalue > 1e-3
    assert abs(stats.pearsonr(along_positions[:-1], along_positions[1:]).statistic) < 0.03

from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from server.engine.seeding import sibling_seed, uniform


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


@given(st.integers(0, 2**64 - 1))
def test_siblings_have_seeds_of_their_own_the_first_that_of_the_request(seed: int) -> None:
    seeds = [sibling_seed(seed, index) for index in range(64)]
    assert seeds[0] == seed
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= one < 2**64 for one in seeds)
    assert seeds == [sibling_seed(seed, index) for index in range(64)]


def test_the_numbers_of_siblings_are_independent() -> None:
    first, second = ([uniform(sibling_seed(7, index), position) for position in range(10_000)] for index in (0, 1))
    assert abs(stats.pearsonr(first, second).statistic) < 0.04
    across = [uniform(sibling_seed(7, index), 0) for index in range(10_000)]
    assert stats.kstest(across, "uniform").pvalue > 1e-3

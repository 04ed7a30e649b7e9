import threading

from hypothesis import given
from hypothesis import strategies as st

from server.engine.histogram import Histogram

BOUNDS = st.sets(st.floats(-10, 10), min_size=1).map(lambda bounds: tuple(sorted(bounds)))


@given(BOUNDS, st.lists(st.integers(-20, 20).map(float)))
def test_each_value_is_counted_in_the_first_range_whose_bound_is_not_below_it(
    bounds: tuple[float, ...], values: list[float]
) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert snapshot.bounds == bounds
    assert snapshot.total == sum(values)
    assert sum(snapshot.counts) == len(values)
    for i, bound in enumerate(bounds):
        assert sum(snapshot.counts[: i + 1]) == sum(value <= bound for value in values)


def test_reading_while_it_counts_is_safe() -> None:
    histogram, done = Histogram((0.5,)), threading.Event()

    def count() -> None:
        for _ in range(50_000):
            histogram.observe(1.0)
        done.set()

    thread = threading.Thread(target=count)
    thread.start()
    seen = [0]
    while not done.is_set():
        seen.append(histogram.snapshot().counts[1])
    thread.join()
    assert seen == sorted(seen)
    assert histogram.snapshot().counts == (0, 50_000)

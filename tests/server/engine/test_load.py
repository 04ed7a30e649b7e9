import threading

from server.engine.load import WINDOW, Throughput


def test_the_speed_is_the_average_of_the_window_and_the_total_is_of_all() -> None:
    meter = Throughput()
    for second in range(20):
        meter.add(30, second + 0.5)
    assert meter.per_second(20.0) == 30.0 * 9 / WINDOW
    assert meter.per_second(100.0) == 0.0
    assert meter.total == 600


def test_reading_the_speed_while_it_is_counted_is_safe() -> None:
    meter, done = Throughput(), threading.Event()

    def count() -> None:
        for second in range(50_000):
            meter.add(1, float(second))
        done.set()

    thread = threading.Thread(target=count)
    thread.start()
    while not done.is_set():
        assert 0 <= meter.per_second(25_000.0) <= 1
    thread.join()
    assert meter.total == 50_000

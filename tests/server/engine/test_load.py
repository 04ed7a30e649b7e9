from server.engine.load import WINDOW, Throughput


def test_the_speed_is_the_average_of_the_window_and_the_total_is_of_all() -> None:
    meter = Throughput()
    for second in range(20):
        meter.add(30, second + 0.5)
    assert meter.per_second(20.0) == 30.0 * 9 / WINDOW
    assert meter.per_second(100.0) == 0.0
    assert meter.total == 600

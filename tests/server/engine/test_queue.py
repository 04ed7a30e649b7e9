import threading

import pytest

from server.engine.errors import QueueFull
from server.engine.queue import RequestQueue
from tests.server.engine.driver import request


def test_requests_come_out_in_order_and_once() -> None:
    queue = RequestQueue(10)
    asked = [request() for _ in range(3)]
    for one in asked:
        queue.put(one)
    assert list(queue.take_all().requests) == asked
    assert queue.take_all().requests == ()


def test_a_place_is_taken_until_the_request_is_retired() -> None:
    queue = RequestQueue(2)
    first, second, third = request(), request(), request()
    queue.put(first)
    queue.put(second)
    queue.take_all()
    with pytest.raises(QueueFull, match="2 requests"):
        queue.put(third)
    queue.retire(first.number)
    queue.put(third)
    assert queue.in_flight == 2


def test_a_cancellation_comes_out_once_and_only_for_what_is_in_flight() -> None:
    queue = RequestQueue(2)
    one, other = request(), request()
    queue.put(one)
    queue.cancel(one.number)
    queue.cancel(other.number)
    assert queue.take_all().cancelled == {one.number}
    queue.cancel(one.number)
    queue.retire(one.number)
    queue.cancel(one.number)
    assert queue.take_all().cancelled == frozenset()


@pytest.mark.parametrize("wake", ["put", "cancel", "wake"])
def test_a_waiting_scheduler_wakes_up(wake: str) -> None:
    queue = RequestQueue(2)
    one = request()
    if wake == "cancel":
        queue.put(one)
        queue.take_all()
    woken = threading.Event()

    def wait() -> None:
        queue.wait(timeout=60)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    {"put": lambda: queue.put(one), "cancel": lambda: queue.cancel(one.number), "wake": queue.wake}[wake]()
    assert woken.wait(30)
    thread.join()


def test_a_wake_before_the_wait_is_not_lost() -> None:
    queue = RequestQueue(2)
    queue.wake()
    queue.wait(timeout=3600)


def test_many_threads_never_exceed_the_capacity() -> None:
    queue, taken = RequestQueue(50), []

    def put_many() -> None:
        for _ in range(100):
            one = request()
            try:
                queue.put(one)
            except QueueFull:
                continue
            taken.append(one)

    threads = [threading.Thread(target=put_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 50
    assert {r.number for r in queue.take_all().requests} == {r.number for r in taken}

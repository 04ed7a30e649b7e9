"""The RequestQueue: the one way into the scheduler thread, bounded."""

import threading
from dataclasses import dataclass

from server.engine.errors import QueueFull
from server.engine.request import Request


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What came since the last look: requests in order of arrival, and the numbers of requests to cancel."""

    requests: tuple[Request, ...]
    cancelled: frozenset[int]


class RequestQueue:
    """Carries requests and cancellations from any thread to the scheduler.

    A request is in flight from `put` to `retire`. At most `capacity` are, so that is the bound of everything the
    scheduler holds; a cancellation of a request that is not in flight is forgotten.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._in_flight: set[int] = set()
        self._requests: list[Request] = []
        self._cancelled: set[int] = set()
        self._woken = False
        self._condition = threading.Condition()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def check_room(self, count: int) -> None:
        """Raises QueueFull where `count` more requests in flight would be more than `capacity`."""
        if len(self._in_flight) + count > self.capacity:
            room = f", and this call asks for {count}" if count > 1 else ""
            raise QueueFull(f"{len(self._in_flight)} of {self.capacity} requests are running or waiting{room}")

    def put(self, *requests: Request) -> None:
        """Takes all of them, or raises QueueFull."""
        with self._condition:
            self.check_room(len(requests))
            self._in_flight.update(request.number for request in requests)
            self._requests += requests
            self._condition.notify()

    def cancel(self, number: int) -> None:
        with self._condition:
            if number in self._in_flight:
                self._cancelled.add(number)
                self._condition.notify()

    def wake(self) -> None:
        """Ends the current `wait`, or the next."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def take_all(self) -> Arrivals:
        with self._condition:
            arrivals = Arrivals(tuple(self._requests), frozenset(self._cancelled))
            self._requests.clear()
            self._cancelled.clear()
            return arrivals

    def wait(self, timeout: float) -> None:
        """Returns when there is something to take, after `wake`, or after `timeout` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._requests or self._cancelled or self._woken, timeout)
            self._woken = False

    def retire(self, number: int) -> None:
        """Gives the place of a request that has ended to the next."""
        with self._condition:
            self._in_flight.remove(number)
            self._cancelled.discard(number)

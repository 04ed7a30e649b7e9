"""What becomes of calls when a replica refuses, drains, dies or comes back. No client retries here: Envoy does."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import treadle
from treadle import Client, Event, Result, Started

from tests.mesh.conftest import StartEnvoy, StartReplica
from tests.mesh.envoy import addresses
from tests.mesh.replica import ONCE, Replica, eventually, free_port


def begin(client: Client, tokens: int) -> Iterator[Event]:
    """A stream that has been admitted; it is left with the iterator."""
    events = iter(client.generate("hello", max_new_tokens=tokens, ignore_eos=True))
    assert isinstance(next(events), Started)
    return events


def begin_on(client: Client, replica: Replica, tokens: int) -> Iterator[Event]:
    """A stream on this replica, which must be idle."""
    others = []
    while not replica.running():
        others.append(begin(client, tokens))
    return others[-1]


@contextmanager
def load(client: Client, callers: int) -> Iterator[list[str]]:
    """Calls without end, from so many callers; gives what has failed."""
    failures: list[str] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                client.complete("hello", max_new_tokens=2, ignore_eos=True)
            except treadle.TreadleError as error:
                failures.append(repr(error))

    with ThreadPoolExecutor(callers) as threads:
        calling = [threads.submit(call) for _ in range(callers)]
        try:
            yield failures
        finally:
            stop.set()
        for each in calling:
            each.result()


def test_a_call_that_a_full_replica_refuses_is_taken_by_another(
    start_replica: StartReplica, start_envoy: StartEnvoy
) -> None:
    full, free = start_replica("--max-slots=1", "--max-waiting=0"), start_replica()
    envoy = start_envoy(addresses([full, free]))
    with Client(full.address, retry=ONCE) as direct, Client(envoy.address, retry=ONCE) as client:
        running = begin(direct, tokens=1000)
        for _ in range(8):
            client.complete("hello", max_new_tokens=1)
        # Nor where the full one looks the better choice.
        busy = [begin(client, tokens=1000) for _ in range(4)]
        assert (full.running(), free.running()) == (1, 4)
        del busy, running
    assert envoy.counter("upstream_rq_retry") > 0
    assert envoy.counter("upstream_rq_retry_success") == envoy.counter("upstream_rq_retry")


def test_where_every_replica_is_full_the_client_hears_so(start_replica: StartReplica, start_envoy: StartEnvoy) -> None:
    full = start_replica("--max-slots=1", "--max-waiting=0")
    with Client(start_envoy(addresses([full])).address, retry=ONCE) as client:
        running = begin(client, tokens=1000)
        with pytest.raises(treadle.Overloaded) as raised:
            client.complete("hello", max_new_tokens=1)
        assert (raised.value.reason, raised.value.retry_after) == ("QUEUE_FULL", 1)
        del running


def test_no_call_fails_while_a_replica_drains_under_load(start_replica: StartReplica, start_envoy: StartEnvoy) -> None:
    leaving, staying = start_replica("--grace=1m"), start_replica()
    envoy = start_envoy(addresses([leaving, staying]))
    with Client(envoy.address, retry=ONCE) as client:
        stream = begin_on(client, leaving, tokens=40)
        with load(client, callers=6) as failures:
            eventually(lambda: leaving.running() > 1 and staying.running() > 1)
            leaving.drain()
            events = list(stream)
            assert leaving.status() == 0
            eventually(lambda: envoy.hosts()[leaving.port]["failed"])
            client.complete("hello", max_new_tokens=5)
        assert failures == []
        assert isinstance(events[-1], Result)
    assert envoy.counter("upstream_rq_retry") > 0


def test_a_killed_replica_ends_its_streams_and_no_others_and_gets_no_new_calls(
    start_replica: StartReplica, start_envoy: StartEnvoy
) -> None:
    dying, staying = start_replica(), start_replica()
    envoy = start_envoy(addresses([dying, staying]))
    with Client(envoy.address, retry=ONCE) as client:
        streams = [begin(client, tokens=40) for _ in range(4)]
        while not (dying.running() and staying.running()):
            streams.append(begin(client, tokens=40))
        lost, kept = dying.running(), staying.running()
        dying.kill()
        for _ in range(10):
            client.complete("hello", max_new_tokens=1)
        ends = [end_of(stream) for stream in streams]
        assert sorted(ends) == ["Result"] * kept + ["ServerError"] * lost
        back = start_replica(port=dying.port)
        eventually(lambda: not any(envoy.hosts()[dying.port][what] for what in ("failed", "left out")))
        streams = [begin(client, tokens=1000)]
        while not back.running():
            streams.append(begin(client, tokens=1000))
        del streams


def end_of(stream: Iterator[Event]) -> str:
    """The last event's name, or the error's."""
    last: Event | None = None
    try:
        for event in stream:
            last = event
    except treadle.TreadleError as error:
        return type(error).__name__
    return type(last).__name__


def test_a_replica_that_loads_is_not_asked(start_replica: StartReplica, start_envoy: StartEnvoy) -> None:
    ready = start_replica()
    loading = start_replica(port=free_port("127.0.0.1"), model="endless")
    envoy = start_envoy(addresses([loading, ready]))
    with Client(envoy.address, retry=ONCE) as client:
        for _ in range(4):
            client.complete("hello", max_new_tokens=1)
    assert envoy.counter("upstream_rq_retry") == 0

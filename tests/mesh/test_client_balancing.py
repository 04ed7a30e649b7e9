"""A client that spreads its own calls over several addresses, as the name of a headless Service has them.

The addresses are of the loopback network, all with one port, as those of pods are.
"""

from collections.abc import Iterator, Sequence

import pytest
from treadle import AsyncClient, Client, Event, Result, Started

from tests.mesh.conftest import StartReplica
from tests.mesh.replica import ONCE, Replica, eventually

HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def start_pods(start_replica: StartReplica, hosts: Sequence[str]) -> list[Replica]:
    first = start_replica(host=hosts[0])
    return [first, *(start_replica(host=host, port=first.port) for host in hosts[1:])]


@pytest.fixture(scope="module")
def pods(start_replica: StartReplica) -> list[Replica]:
    """Three that stay up."""
    return start_pods(start_replica, HOSTS)


def target(pods: Sequence[Replica]) -> str:
    return "ipv4:" + ",".join(pod.address for pod in pods)


def begin(client: Client, count: int, tokens: int = 1000) -> list[Iterator[Event]]:
    streams = [iter(client.generate("hello", max_new_tokens=tokens, ignore_eos=True)) for _ in range(count)]
    for stream in streams:
        assert isinstance(next(stream), Started)
    return streams


def wait_for_connections(client: Client, pods: Sequence[Replica]) -> None:
    """Calls until each pod has answered one; before, a call goes to those that are connected already."""
    before = [pod.load().tokens_generated for pod in pods]

    def all_have_answered() -> bool:
        client.complete("hello", max_new_tokens=1, ignore_eos=True)
        return all(pod.load().tokens_generated > count for pod, count in zip(pods, before, strict=True))

    eventually(all_have_answered)


def test_calls_go_in_turn_to_every_pod(pods: list[Replica]) -> None:
    with Client(target(pods), balance=True, retry=ONCE) as client:
        wait_for_connections(client, pods)
        streams = begin(client, 9)
        assert [pod.running() for pod in pods] == [3, 3, 3]
        del streams
        eventually(lambda: not any(pod.running() for pod in pods))


def test_without_it_all_calls_go_to_one(pods: list[Replica]) -> None:
    with Client(target(pods), retry=ONCE) as client:
        streams = begin(client, 9)
        assert sorted(pod.running() for pod in pods) == [0, 0, 9]
        del streams


async def test_the_client_for_asyncio_does_so_too(pods: list[Replica]) -> None:
    before = [pod.load().tokens_generated for pod in pods]
    async with AsyncClient(target(pods), balance=True, retry=ONCE) as client:
        while any(pod.load().tokens_generated == count for pod, count in zip(pods, before, strict=True)):
            await client.complete("hello", max_new_tokens=1, ignore_eos=True)


def test_a_pod_that_drains_finishes_its_streams_and_gets_no_new_calls(start_replica: StartReplica) -> None:
    leaving, staying = pods = start_pods(start_replica, HOSTS[:2])
    with Client(target(pods), balance=True) as client:
        wait_for_connections(client, pods)
        streams = begin(client, 4, tokens=50)
        leaving.drain()
        eventually(lambda: not leaving.is_ready())
        later = begin(client, 4)
        assert (leaving.running(), staying.running()) == (2, 6)
        assert [isinstance(list(stream)[-1], Result) for stream in streams] == [True] * 4
        assert leaving.status() == 0
        del later


def test_a_pod_that_dies_gets_no_new_calls(start_replica: StartReplica) -> None:
    pods = start_pods(start_replica, HOSTS[:2])
    with Client(target(pods), balance=True) as client:
        wait_for_connections(client, pods)
        pods[0].kill()
        for _ in range(6):
            client.complete("hello", max_new_tokens=1)


def test_a_pod_that_loads_gets_no_calls(start_replica: StartReplica) -> None:
    ready = start_replica(host=HOSTS[0])
    loading = start_replica(host=HOSTS[1], port=ready.port, model="endless")
    with Client(target([loading, ready]), balance=True, retry=ONCE) as client:
        for _ in range(6):
            client.complete("hello", max_new_tokens=1)

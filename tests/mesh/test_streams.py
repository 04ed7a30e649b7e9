"""Streams through Envoy with the settings that are shipped."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import treadle
from grpc_health.v1 import health_pb2, health_pb2_grpc
from treadle import Client, Started

from tests.mesh.conftest import StartEnvoy
from tests.mesh.envoy import Envoy, Settings, addresses, cluster, connection_manager
from tests.mesh.replica import ONCE, STEP_SECONDS, Replica, eventually

LONG_STREAM_SECONDS = float(os.environ.get("MESH_STREAM_SECONDS", "17"))
"""More than Envoy's default timeout of a route, 15 s."""


def are_idle(replicas: list[Replica]) -> bool:
    return all(replica.running() == 0 for replica in replicas)


def test_a_stream_outlives_envoys_default_timeout(envoy: Envoy) -> None:
    tokens = int(LONG_STREAM_SECONDS / STEP_SECONDS)
    began = time.monotonic()
    with Client(envoy.address, retry=ONCE) as client:
        stream = client.generate("hello", max_new_tokens=tokens, ignore_eos=True)
        assert len("".join(stream.text()).encode()) > 0
        assert stream.result.usage.completion_tokens == tokens
    assert time.monotonic() - began > LONG_STREAM_SECONDS


def test_a_route_with_a_timeout_cuts_a_running_stream(replicas: list[Replica], start_envoy: StartEnvoy) -> None:
    def with_timeout(settings: Settings) -> None:
        for route in connection_manager(settings)["route_config"]["virtual_hosts"][0]["routes"]:
            route["route"] = {**route["route"], "timeout": "1s"}

    with Client(start_envoy(addresses(replicas), change=with_timeout).address, retry=ONCE) as client:
        stream = client.generate("hello", max_new_tokens=100, ignore_eos=True)
        with pytest.raises(treadle.TreadleError):
            list(stream)
        assert stream.started is not None
    eventually(lambda: are_idle(replicas))


def test_tokens_come_one_by_one(envoy: Envoy) -> None:
    with Client(envoy.address) as client:
        times = [time.monotonic() for _ in client.generate("hello", max_new_tokens=20, ignore_eos=True)]
    assert times[-1] - times[0] > 10 * STEP_SECONDS


def test_a_clients_deadline_is_kept_and_ends_the_work(envoy: Envoy, replicas: list[Replica]) -> None:
    with Client(envoy.address, retry=ONCE) as client, pytest.raises(treadle.DeadlineExceeded):
        list(client.generate("hello", max_new_tokens=1000, ignore_eos=True, timeout=1.0))
    eventually(lambda: are_idle(replicas))


def test_leaving_a_stream_ends_the_work_behind_the_proxy(envoy: Envoy, replicas: list[Replica]) -> None:
    with Client(envoy.address) as client:
        stream = client.generate("hello", max_new_tokens=1000, ignore_eos=True)
        for event in stream:
            if isinstance(event, Started):
                assert sum(replica.running() for replica in replicas) == 1
                break
        eventually(lambda: are_idle(replicas))


def test_long_streams_of_one_channel_are_spread(envoy: Envoy, replicas: list[Replica]) -> None:
    with Client(envoy.address) as client, ThreadPoolExecutor(20) as threads:
        leave = threading.Event()

        def stay() -> None:
            for _ in client.generate("hello", max_new_tokens=1000, ignore_eos=True):
                if leave.is_set():
                    return

        staying = [threads.submit(stay) for _ in range(20)]
        try:
            eventually(lambda: sum(replica.running() for replica in replicas) == 20)
            spread = sorted(replica.running() for replica in replicas)
        finally:
            leave.set()
        for each in staying:
            each.result()
    # Each goes to the better of two picks, which are the same replica now and then.
    assert spread[0] >= 6
    eventually(lambda: are_idle(replicas))


def test_max_requests_counts_open_streams(replicas: list[Replica], start_envoy: StartEnvoy) -> None:
    def few(settings: Settings) -> None:
        (limits,) = cluster(settings)["circuit_breakers"]["thresholds"]
        limits["max_requests"] = 2

    with Client(start_envoy(addresses(replicas), change=few).address, retry=ONCE) as client:
        streams = [iter(client.generate("hello", max_new_tokens=1000, ignore_eos=True)) for _ in range(2)]
        for stream in streams:
            next(stream)
        with pytest.raises(treadle.Unavailable, match="overflow"):
            client.complete("hello", max_new_tokens=1)
    eventually(lambda: are_idle(replicas))


def test_the_callers_request_id_arrives_unchanged(envoy: Envoy) -> None:
    request_id = "0d3b5f4e-8a3c-4c1e-9f5b-2f6f7a8b9c0d"
    with Client(envoy.address, metadata={"x-request-id": request_id}) as client:
        stream = client.generate("hello", max_new_tokens=1)
        list(stream)
        assert stream.started is not None
        assert stream.started.request_id == request_id


def test_health_is_asked_through_the_proxy(envoy: Envoy) -> None:
    with grpc.insecure_channel(envoy.address) as channel:
        asked = health_pb2.HealthCheckRequest(service="treadle.v1.GenerationService")
        assert health_pb2_grpc.HealthStub(channel).Check(asked).status == health_pb2.HealthCheckResponse.SERVING

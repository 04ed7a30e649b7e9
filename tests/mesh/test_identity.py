"""Who the client is, where Envoy asks it for a certificate, and who it cannot pretend to be."""

import re
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import treadle
import yaml
from treadle import TLS, Client, Result, Started
from treadle.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server

from tests.client.scripted import ScriptedServer, ScriptedServicer
from tests.mesh.conftest import StartEnvoy
from tests.mesh.envoy import DIRECTORY, SHIPPED, Envoy, Settings, addresses, cluster
from tests.mesh.replica import ONCE, PATIENCE, ROOT, Replica, eventually

SERVER = ROOT / "tests" / "client" / "certificates" / "server"
CLIENT = ROOT / "tests" / "mesh" / "certificates" / "client"
IDENTITY = "spiffe://cluster.local/ns/chat/sa/tenant-a"
FORGED = {"x-forwarded-client-cert": "URI=spiffe://cluster.local/ns/chat/sa/admin"}


def pem(path: Path) -> bytes:
    return path.with_suffix(".pem").read_bytes()


def key(path: Path) -> bytes:
    return path.with_suffix(".key").read_bytes()


def tls_of(who: Path) -> TLS:
    return TLS(pem(SERVER), pem(who), key(who), server_name="treadle.test")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What envoy-mtls.yaml reads, in place of /etc/envoy."""
    certificates = tmp_path / "tls"
    certificates.mkdir()
    (certificates / "tls.crt").write_bytes(pem(SERVER))
    (certificates / "tls.key").write_bytes(key(SERVER))
    (certificates / "ca.crt").write_bytes(pem(CLIENT))
    for name in ("server-secret.yaml", "clients-secret.yaml"):
        (tmp_path / name).write_text((SHIPPED / name).read_text().replace(DIRECTORY, str(tmp_path)))
    return tmp_path


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """In a replica's place: it remembers the metadata of its calls."""
    server = ScriptedServer.start()
    yield server
    server.stop()


@pytest.fixture
def envoy(files: Path, replicas: list[Replica], start_envoy: StartEnvoy) -> Envoy:
    return start_envoy(addresses(replicas), "envoy-mtls.yaml", places={DIRECTORY: files})


def without_health_checks(settings: Settings) -> None:
    """A scripted server has no health to ask for."""
    cluster(settings)["health_checks"] = []


def place_of(server: ScriptedServer) -> tuple[str, int]:
    host, port = server.address.split(":")
    return host, int(port)


def test_a_client_with_a_certificate_is_served(envoy: Envoy) -> None:
    with Client(envoy.address, tls=tls_of(CLIENT), retry=ONCE) as client:
        assert len(client.complete("hello", max_new_tokens=3, ignore_eos=True).token_ids) == 3


@pytest.mark.parametrize(
    "tls",
    [tls_of(SERVER), TLS(pem(SERVER), server_name="treadle.test"), None],
    ids=["a stranger's certificate", "no certificate", "not encrypted"],
)
def test_a_client_without_one_is_not(envoy: Envoy, tls: TLS | None) -> None:
    with Client(envoy.address, tls=tls, retry=ONCE) as client, pytest.raises(treadle.Unavailable):
        client.complete("hello")


def test_the_replica_is_told_who_the_client_is(files: Path, start_envoy: StartEnvoy, scripted: ScriptedServer) -> None:
    envoy = start_envoy([place_of(scripted)], "envoy-mtls.yaml", without_health_checks, {DIRECTORY: files})
    with Client(envoy.address, tls=tls_of(CLIENT), metadata=FORGED, retry=ONCE) as client:
        client.complete("hello")
    told = str(scripted.asked[0].metadata["x-forwarded-client-cert"])
    assert f"URI={IDENTITY}" in told
    assert "admin" not in told


def test_a_client_that_envoy_does_not_know_cannot_say_who_it_is(
    start_envoy: StartEnvoy, scripted: ScriptedServer
) -> None:
    envoy = start_envoy([place_of(scripted)], change=without_health_checks)
    with Client(envoy.address, metadata=FORGED, token="secret", retry=ONCE) as client:
        client.complete("hello")
    metadata = scripted.asked[0].metadata
    assert "x-forwarded-client-cert" not in metadata
    assert metadata["authorization"] == "Bearer secret"


def test_replicas_that_serve_tls_are_reached_by_the_socket_in_the_docs(tmp_path: Path, start_envoy: StartEnvoy) -> None:
    (tmp_path / "tls").mkdir()
    for name, content in (("tls.crt", pem(CLIENT)), ("tls.key", key(CLIENT)), ("ca.crt", pem(SERVER))):
        (tmp_path / "tls" / name).write_bytes(content)
    docs = (ROOT / "docs" / "MESH.md").read_text()
    (documented,) = re.findall(r"```yaml\n(transport_socket:.*?)```", docs, re.DOTALL)
    fitted_text = documented.replace(DIRECTORY, str(tmp_path)).replace("exact: treadle", "exact: treadle.test")

    def encrypted(settings: Settings) -> None:
        without_health_checks(settings)
        cluster(settings).update(yaml.safe_load(fitted_text))

    server = grpc.server(ThreadPoolExecutor(2))
    add_GenerationServiceServicer_to_server(ScriptedServicer(), server)
    credentials = grpc.ssl_server_credentials([(key(SERVER), pem(SERVER))], pem(CLIENT), require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        with Client(start_envoy([("127.0.0.1", port)], change=encrypted).address, retry=ONCE) as client:
            assert client.complete("hello").text == "Hello world"
    finally:
        server.stop(None).wait(PATIENCE)


def test_a_new_certificate_is_shown_while_streams_go_on(envoy: Envoy, files: Path) -> None:
    with Client(envoy.address, tls=tls_of(CLIENT), retry=ONCE) as client:
        stream = iter(client.generate("hello", max_new_tokens=30, ignore_eos=True))
        assert isinstance(next(stream), Started)
        assert shown_by(envoy) == pem(SERVER).decode()
        for name, content in (("tls.key", key(CLIENT)), ("tls.crt", pem(CLIENT))):
            (files / name).write_bytes(content)
            (files / name).rename(files / "tls" / name)
        eventually(lambda: shown_by(envoy) == pem(CLIENT).decode())
        assert isinstance(list(stream)[-1], Result)


def shown_by(envoy: Envoy) -> str:
    """Envoy's certificate, on a new connection."""
    context = ssl.create_default_context(cadata=pem(SERVER).decode())
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(CLIENT.with_suffix(".pem"), CLIENT.with_suffix(".key"))
    with (
        socket.create_connection(("127.0.0.1", envoy.port)) as connection,
        context.wrap_socket(connection) as encrypted,
    ):
        der = encrypted.getpeercert(binary_form=True)
        assert der is not None
        return ssl.DER_cert_to_PEM_cert(der)

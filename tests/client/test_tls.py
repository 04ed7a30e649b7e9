"""A connection that is encrypted, and on which both sides prove who they are."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import treadle
from treadle import TLS, Client, RetryPolicy
from treadle.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server

from tests.client.cli.command import Command
from tests.client.scripted import PATIENCE, ScriptedServicer

CERTIFICATES = Path(__file__).parent / "certificates"
CERTIFICATE, KEY = (CERTIFICATES / "server.pem").read_bytes(), (CERTIFICATES / "server.key").read_bytes()
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def address() -> Iterator[str]:
    """Of a server that asks its clients for the same certificate that it shows."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_GenerationServiceServicer_to_server(ScriptedServicer(), server)
    credentials = grpc.ssl_server_credentials([(KEY, CERTIFICATE)], CERTIFICATE, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait(PATIENCE)


def test_both_sides_prove_who_they_are(address: str) -> None:
    tls = TLS(CERTIFICATE, CERTIFICATE, KEY, server_name="treadle.test")
    with Client(address, tls=tls, retry=ONCE) as client:
        assert client.complete("hi").text == "Hello world"


@pytest.mark.parametrize(
    "tls",
    [
        TLS(CERTIFICATE, CERTIFICATE, KEY),
        TLS(None, CERTIFICATE, KEY, server_name="treadle.test"),
        TLS(CERTIFICATE, server_name="treadle.test"),
        None,
    ],
    ids=["another name", "untrusted", "no certificate of its own", "not encrypted"],
)
def test_who_does_not_prove_it_is_not_served(address: str, tls: TLS | None) -> None:
    with Client(address, tls=tls, retry=ONCE) as client, pytest.raises(treadle.Unavailable):
        client.complete("hi")


def test_the_command_takes_the_files(address: str) -> None:
    certificate, key = str(CERTIFICATES / "server.pem"), str(CERTIFICATES / "server.key")
    flags = ["--tls-ca", certificate, "--tls-cert", certificate, "--tls-key", key, "--tls-server-name", "treadle.test"]
    assert Command(address).run("generate", "hi", *flags).out == "Hello world\n"

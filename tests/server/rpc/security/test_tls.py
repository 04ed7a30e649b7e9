"""TLS and mutual TLS over real sockets."""

import asyncio
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from structlog.testing import capture_logs
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

from server.rpc.security.errors import BadSecurityFile
from server.rpc.security.limits import Limits
from server.rpc.security.settings import SecuritySettings, TLSFiles
from tests.server.rpc.security.authority import Authority
from tests.server.rpc.security.callers import code_of, code_over, secure_channel, secured
from tests.server.rpc.serving import Serving, Start, eventually, generate_request

ED25519_KEY = ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE

Lines = list[MutableMapping[str, Any]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    with capture_logs() as captured:
        yield captured


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Has certified the server."""
    authority = Authority()
    authority.certify_server().write(tmp_path)
    (tmp_path / "clients.pem").write_bytes(authority.certificate)
    return authority


def one_sided(directory: Path) -> Serving:
    return secured(SecuritySettings(tls=TLSFiles(directory / "server.pem", directory / "server.key")))


def mutual(directory: Path) -> Serving:
    files = TLSFiles(directory / "server.pem", directory / "server.key", directory / "clients.pem")
    return secured(SecuritySettings(tls=files))


async def test_a_client_that_trusts_the_authority_is_served_encrypted(
    start: Start, tmp_path: Path, authority: Authority
) -> None:
    serving = await (await start(one_sided(tmp_path))).ready()
    assert await code_over(secure_channel(serving.port, authority.certificate)) is OK
    assert await code_over(secure_channel(serving.port, Authority("another").certificate)) is UNAVAILABLE
    assert await code_over(grpc.aio.insecure_channel(f"127.0.0.1:{serving.port}")) is UNAVAILABLE


async def test_with_client_authorities_a_client_needs_a_certificate_of_theirs(
    start: Start, tmp_path: Path, authority: Authority
) -> None:
    serving = await (await start(mutual(tmp_path))).ready()
    root = authority.certificate
    assert await code_over(secure_channel(serving.port, root, authority.certify("alice"))) is OK
    assert await code_over(secure_channel(serving.port, root)) is UNAVAILABLE
    assert await code_over(secure_channel(serving.port, root, Authority().certify("alice"))) is UNAVAILABLE


SPIFFE_ID = "spiffe://cluster.local/ns/default/sa/alice"


@pytest.mark.parametrize(
    ("common_name", "names", "identity"),
    [
        ("alice", (), "certificate:alice"),
        ("alice", (x509.DNSName("alice.example"),), "certificate:alice.example"),
        ("alice", (x509.DNSName("a.b"), x509.UniformResourceIdentifier(SPIFFE_ID)), f"certificate:{SPIFFE_ID}"),
        ("", (), "certificate:sha256:"),
        ("two\nlines", (), "certificate:sha256:"),
    ],
)
async def test_a_certificates_owner_is_in_the_log(
    start: Start,
    tmp_path: Path,
    authority: Authority,
    lines: Lines,
    common_name: str,
    names: tuple[x509.GeneralName, ...],
    identity: str,
) -> None:
    serving = await (await start(mutual(tmp_path))).ready()
    certified = authority.certify(common_name, *names)
    assert await code_over(secure_channel(serving.port, authority.certificate, certified)) is OK
    await eventually(lambda: any(line["event"] == "request" for line in lines))
    (line,) = [line for line in lines if line["event"] == "request"]
    assert line["identity"].startswith(identity)


async def test_each_certificates_owner_has_limits_of_its_own(
    start: Start, tmp_path: Path, authority: Authority
) -> None:
    serving = mutual(tmp_path)
    security = replace(serving.server_settings.security, limits=Limits(tokens_per_minute=1))
    serving.server_settings = replace(serving.server_settings, security=security)
    await (await start(serving)).ready()
    codes = []
    for owner in (authority.certify("alice"), authority.certify("alice"), authority.certify("bob")):
        async with secure_channel(serving.port, authority.certificate, owner) as channel:
            codes.append(await code_of(GenerationServiceStub(channel).Generate(generate_request())))
    assert codes == [OK, grpc.StatusCode.RESOURCE_EXHAUSTED, OK]


async def test_a_certificate_does_not_stand_in_for_a_token(start: Start, tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "tokens").write_text("")
    serving = mutual(tmp_path)
    security = replace(serving.server_settings.security, tokens_file=tmp_path / "tokens")
    serving.server_settings = replace(serving.server_settings, security=security)
    await start(serving)
    channel = secure_channel(serving.port, authority.certificate, authority.certify("alice"))
    assert await code_over(channel) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_new_certificate_is_shown_to_new_connections_and_no_stream_is_dropped(
    start: Start, tmp_path: Path, authority: Authority
) -> None:
    serving = await (await start(one_sided(tmp_path))).ready()
    async with secure_channel(serving.port, authority.certificate) as channel:
        serving.steps.close()
        stream = GenerationServiceStub(channel).Generate(generate_request(max_new_tokens=50))
        await asyncio.to_thread(serving.steps.reached.wait)
        successor = Authority("successor")
        successor.certify_server().write(tmp_path)
        async with asyncio.timeout(30):
            while await code_over(secure_channel(serving.port, successor.certificate)) is not OK:
                await asyncio.sleep(0.05)
        assert await code_over(secure_channel(serving.port, authority.certificate)) is UNAVAILABLE
        serving.steps.open()
        assert [event async for event in stream][-1].HasField("result")


async def test_new_client_authorities_take_the_place_of_the_old(
    start: Start, tmp_path: Path, authority: Authority
) -> None:
    serving = await (await start(mutual(tmp_path))).ready()
    successor = Authority("successor")
    (tmp_path / "clients.pem").write_bytes(successor.certificate)
    root, newcomer = authority.certificate, successor.certify("bob")
    async with asyncio.timeout(30):
        while await code_over(secure_channel(serving.port, root, newcomer)) is not OK:
            await asyncio.sleep(0.05)
    assert await code_over(secure_channel(serving.port, root, authority.certify("alice"))) is UNAVAILABLE


async def test_a_broken_new_file_is_logged_once_and_the_old_certificate_stays(
    start: Start, tmp_path: Path, authority: Authority, lines: Lines
) -> None:
    serving = await (await start(one_sided(tmp_path))).ready()
    security = serving.server._security
    (tmp_path / "server.pem").write_bytes(authority.certify_server().certificate)  # the key is still the old one
    security.refresh()
    security.refresh()
    (error,) = [line for line in lines if line["log_level"] == "error"]
    assert error["problem"].endswith("the key is not that of the certificate")
    assert await code_over(secure_channel(serving.port, authority.certificate)) is OK
    (tmp_path / "server.key").unlink()
    security.refresh()
    assert "No such file" in lines[-1]["problem"] or lines[-1]["event"] == "request"
    assert await code_over(secure_channel(serving.port, authority.certificate)) is OK


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("server.pem", b"", "the certificate must be PEM"),
        ("server.pem", b"not PEM", "the certificate must be PEM"),
        ("server.key", b"not PEM", "the key must be a PEM private key"),
        ("server.key", ED25519_KEY, "the key must be RSA, or elliptic on P-256 or P-384"),
        ("clients.pem", b"not PEM", "the client authorities must be PEM"),
        ("server.key", Authority().certify_server().key, "the key is not that of the certificate"),
        ("server.key", b"x" * (5 << 20), "at most 4194304 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_start(
    tmp_path: Path, authority: Authority, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadSecurityFile, match=problem) as refused:
        asyncio.run(mutual(tmp_path).start())
    assert name in str(refused.value)

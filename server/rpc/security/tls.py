"""TLS from files: the server's certificate and key, and the authorities of its clients."""

from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from server.rpc.security.errors import BadContent
from server.rpc.security.reloaded_files import ReloadedFiles
from server.rpc.security.settings import TLSFiles

CURVES = ("secp256r1", "secp384r1")
"""Of a server's key. BoringSSL, which gRPC is built with, shakes no hands on P-521 or Ed25519 by default."""


class ServerTLS:
    """Raises BadSecurityFile."""

    def __init__(self, files: TLSFiles) -> None:
        paths: tuple[Path, ...] = (files.certificate, files.key)
        if files.client_ca is not None:
            paths += (files.client_ca,)
        self.files = ReloadedFiles(paths, _configuration)
        self._in_force = self.files.current
        # gRPC itself keeps no hold of them.
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._in_force,
            self._changed,  # type: ignore[arg-type]  # the stub's may not return None, gRPC's documentation says it may
            require_client_authentication=files.client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates for new connections where they have changed; connections that are there keep theirs.

        gRPC calls it on a thread of its own before every handshake, so nothing is read here.
        """
        current = self.files.current
        if current is self._in_force:
            return None
        self._in_force = current
        return current


def _configuration(
    certificate: bytes, key: bytes, client_ca: bytes | None = None
) -> grpc.ServerCertificateConfiguration:
    """Raises BadContent for what a handshake would fail by, such as a key that is not yet as new as its certificate."""
    chain = _certificates(certificate, "the certificate")
    try:
        private_key = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # a TypeError is a key under a password
        raise BadContent("the key must be a PEM private key without a password") from None
    is_rsa = isinstance(private_key, rsa.RSAPrivateKey)
    if not is_rsa and not (isinstance(private_key, ec.EllipticCurvePrivateKey) and private_key.curve.name in CURVES):
        raise BadContent("the key must be RSA, or elliptic on P-256 or P-384, for all gRPC clients to take it")
    if private_key.public_key() != chain[0].public_key():
        raise BadContent("the key is not that of the certificate")
    if client_ca is not None:
        _certificates(client_ca, "the client authorities")
    return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)


def _certificates(pem: bytes, what: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise BadContent(f"{what} must be PEM certificates") from None

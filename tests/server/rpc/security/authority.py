"""An authority that certifies servers and clients, made for a test."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

SERVER_NAME = "treadle.test"


@dataclass(frozen=True)
class Certified:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path) -> None:
        (directory / "server.pem").write_bytes(self.certificate)
        (directory / "server.key").write_bytes(self.key)


@dataclass(frozen=True)
class Authority:
    name: str = "authority"
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def certificate(self) -> bytes:
        basic = x509.BasicConstraints(ca=True, path_length=None)
        builder = _builder(self.name, self.name, self._key.public_key()).add_extension(basic, critical=True)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def certify(self, common_name: str, *names: x509.GeneralName) -> Certified:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(common_name, self.name, key.public_key())
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        return Certified(certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def certify_server(self) -> Certified:
        return self.certify("server", x509.DNSName(SERVER_NAME))


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])

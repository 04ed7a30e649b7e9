"""What of the server's settings is about security."""

from dataclasses import dataclass, field
from pathlib import Path

from server.rpc.security.limits import Limits


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """PEM files."""

    certificate: Path
    """The server's certificate, followed by those between it and an authority."""
    key: Path
    client_ca: Path | None = None
    """The authorities of client certificates, which are required where this is set."""


@dataclass(frozen=True, slots=True)
class JWTSettings:
    jwks_file: Path
    audience: str
    issuer: str | None = None
    """None takes any issuer's tokens that a key of the file has signed."""


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """By default nothing is encrypted and anybody may call everything."""

    tls: TLSFiles | None = None
    tokens_file: Path | None = None
    jwt: JWTSettings | None = None
    is_health_open: bool = True
    """Whether health is told to callers without a credential, as is reflection with `is_reflection_open`."""
    is_reflection_open: bool = False
    limits: Limits = field(default_factory=Limits)
    """Of an identity that has no limits of its own in `limits_file`."""
    limits_file: Path | None = None

    @property
    def asks_for_credentials(self) -> bool:
        has_certificates = self.tls is not None and self.tls.client_ca is not None
        return has_certificates or self.tokens_file is not None or self.jwt is not None

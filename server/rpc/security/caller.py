"""The caller: who a call is from, and how that was proven."""

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any

import grpc

MAX_NAME_LENGTH = 256


class Scope(Enum):
    """What a caller may do."""

    GENERATE = "generate"
    ADMIN = "admin"


class Proof(Enum):
    TOKEN = "token"
    JWT = "jwt"
    CERTIFICATE = "certificate"


CERTIFICATE_SCOPES = frozenset({Scope.GENERATE})
"""Of a caller whose certificate is its only credential."""


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    proof: Proof
    scopes: frozenset[Scope]

    @property
    def identity(self) -> str:
        """Unlike the name, never that of two: a token and a certificate may bear the same name."""
        return f"{self.proof.value}:{self.name}"


bearer: ContextVar[Caller | None] = ContextVar("bearer", default=None)
"""Whose token the call carries. The guard sets it: gRPC runs a call's interceptors and its method in one context."""


def caller_of(context: "grpc.aio.ServicerContext[Any, Any]") -> Caller | None:
    """The bearer of the call's token, else the owner of the connection's client certificate, else None."""
    return bearer.get() or _certificate_owner(context.auth_context())


def is_name(name: str) -> bool:
    """Whether logs and limits can bear it."""
    return 1 <= len(name) <= MAX_NAME_LENGTH and name.isprintable()


def _certificate_owner(properties: "dict[str, list[bytes]] | Any") -> Caller | None:
    """Named by the certificate's SPIFFE id, else its first alternative name, else its common name.

    A certificate without a fit name is named by its SHA-256.
    """
    certificate = next(iter(properties.get("x509_pem_cert", ())), None)
    if certificate is None:
        return None
    keys = ("peer_spiffe_id", "x509_subject_alternative_name", "x509_common_name")
    names = (name.decode(errors="replace") for key in keys for name in properties.get(key, ()))
    fingerprint = f"sha256:{hashlib.sha256(certificate).hexdigest()}"
    return Caller(next(filter(is_name, names), fingerprint), Proof.CERTIFICATE, CERTIFICATE_SCOPES)

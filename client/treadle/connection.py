"""How to reach a server: what `Client` and `AsyncClient` have in common of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc

from treadle.version import __version__

DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_MAX_MESSAGE_BYTES = 64 * 2**20
KEEPALIVE_MS = 30_000
"""Treadle's server permits pings every 10 s; proxies in between often less often."""

SPREAD = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "treadle.v1.GenerationService"},
    }
)
"""A gRPC service config, https://github.com/grpc/grpc/blob/master/doc/service_config.md. A server whose health says
NOT_SERVING, because it loads or drains, gets no calls."""


@dataclass(frozen=True, slots=True)
class TLS:
    """Encrypts the connection. The fields are PEM files' contents."""

    root_certificates: bytes | None = None
    """Whom to trust; None: what gRPC trusts by default."""
    certificate_chain: bytes | None = None
    """The client's own certificate, for mutual TLS; needs `private_key`."""
    private_key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    """The name the server's certificate must bear, where it differs from the target's."""

    def __post_init__(self) -> None:
        if (self.certificate_chain is None) != (self.private_key is None):
            raise ValueError("certificate_chain and private_key need each other")

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.root_certificates, self.private_key, self.certificate_chain)


def check_token(token: str | None) -> None:
    """Raises ValueError, without saying the token, for what a header cannot carry."""
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ValueError("the token must be printable ASCII on one line")


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's address and how to talk to it."""

    target: str = DEFAULT_TARGET
    """As gRPC names servers: "host:port", "dns:///host:port", "unix:/path"."""
    tls: TLS | None = None
    """None: not encrypted."""
    token: str | None = field(default=None, repr=False)
    """Sent as a bearer token with every call; without `tls` everybody on the way can read it."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Sent with every call."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """Most bytes of a message in either direction."""
    balance: bool = False
    """Calls go in turn to all servers that the target's name stands for and that are ready, such as the pods behind
    "dns:///treadle-headless:50051". False: all to one of them, which suits a single server or a proxy."""

    def __post_init__(self) -> None:
        check_token(self.token)

    def options(self) -> tuple[tuple[str, str | int], ...]:
        name = None if self.tls is None else self.tls.server_name
        return (
            ("grpc.primary_user_agent", f"treadle-python/{__version__}"),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            # A server that vanished is noticed, also while a call waits long and nothing is sent.
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            # A retry finds a server that has just come back: by default gRPC waits a second before it connects again.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 5_000),
            *((("grpc.ssl_target_name_override", name),) if name else ()),
            *((("grpc.service_config", SPREAD),) if self.balance else ()),
        )

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        bearer = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        return (*self.metadata.items(), *bearer)

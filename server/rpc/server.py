"""The gRPC server, assembled: GenerationService, health, reflection and, where asked for, VllmEngine, on one port."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from server.engine.engine import Engine
from server.observe.call_record import CallObserver
from server.rpc.call import SERVICE, OpenCalls
from server.rpc.health import Health
from server.rpc.intake import Intake, IntakeSettings, Workers
from server.rpc.reflection import serve_reflection
from server.rpc.security.security import Security
from server.rpc.security.settings import SecuritySettings
from server.rpc.servicer import GenerationServicer
from server.rpc.text_workers import TextWorkers

TEXT_WORKERS = 4
CONSTRAINT_WORKERS = 2
TEMPLATE_WORKERS = 2
MAX_WAITING_CONSTRAINTS = 32
MAX_WAITING_TEMPLATES = 32
"""What is slow at its worst keeps the last of those that wait for a minute or two; one more is refused."""
CLOSING_TIME = 2.0
"""Seconds the last statuses get to leave for their clients."""

OPTIONS = (
    # Clients may ping every 10 s, with calls open or without; the margin is for their clocks.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client that vanished without closing its connection is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A port in use is an error, not a share of somebody else's connections.
    ("grpc.so_reuseport", 0),
)


class CannotListen(Exception):
    """The address cannot be bound."""


class GatewayNotInstalled(Exception):
    """VllmEngine is asked for and its protocol is not there."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    host: str
    port: int
    """0 takes any free one."""
    max_message_bytes: int
    max_open_requests: int
    max_open_bytes: int
    """Of the request messages of all open calls."""
    log_prompts: bool
    max_connection_age: float | None = None
    """Seconds after which a connection takes no new calls, give or take a tenth; None: any age."""
    max_connection_age_grace: float | None = None
    """Seconds the calls of such a connection get to finish; None: as long as they take."""
    vllm_engine: bool = False
    """Whether vllm.grpc.engine.VllmEngine is served too."""
    security: SecuritySettings = field(default_factory=SecuritySettings)


class Server:
    """Answers from `start` on; until the engine is ready, with NOT_SERVING and UNAVAILABLE.

    Raises BadSecurityFile and GatewayNotInstalled.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, observers: Sequence[CallObserver] = ()) -> None:
        self._settings = settings
        self._security = Security(settings.security)
        self._calls = OpenCalls(settings.max_open_requests, settings.max_open_bytes, self._security.accounts, observers)
        self._workers = Workers(
            text=TextWorkers(TEXT_WORKERS),
            constraints=TextWorkers(CONSTRAINT_WORKERS, MAX_WAITING_CONSTRAINTS),
            templates=TextWorkers(TEMPLATE_WORKERS, MAX_WAITING_TEMPLATES),
        )
        self._following: list[asyncio.Task[None]] = []
        # gRPC itself refuses what is far too large without keeping it; what is a little too large gets our details.
        hard_limit = ("grpc.max_receive_message_length", 2 * settings.max_message_bytes)
        interceptors = self._security.interceptors(self._calls)
        self._server = grpc.aio.server(interceptors=interceptors, options=(*OPTIONS, hard_limit, *_ages(settings)))
        intake_settings = IntakeSettings(settings.max_message_bytes, settings.log_prompts)
        services = dict(_services(Intake(engine, self._calls, self._workers, intake_settings), settings))
        self._server.add_generic_rpc_handlers(tuple(services.values()))
        self._health = Health(engine, tuple(services))
        add_HealthServicer_to_server(self._health.servicer, self._server)
        serve_reflection(self._server, (*services, health.SERVICE_NAME))

    async def start(self) -> int:
        """Listens, and returns the port. Raises CannotListen."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        address = f"{host}:{self._settings.port}"
        try:
            _check_bindable(self._settings.host, self._settings.port)
            credentials = self._security.credentials
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except (OSError, RuntimeError) as error:
            raise CannotListen(f"cannot listen on {address}: {error}") from error
        await self._health.update()
        await self._server.start()
        self._following = [asyncio.create_task(each.follow()) for each in (self._health, self._security)]
        return port

    async def idle(self) -> None:
        """Waits until no call is open."""
        await self._calls.idle()

    async def stop(self) -> None:
        """Closes the port and ends what is open, once the calls have had CLOSING_TIME to end by themselves."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.idle(), CLOSING_TIME)
        for following in self._following:
            following.cancel()
        await self._server.stop(grace=None)
        self._workers.close()


def _services(intake: Intake, settings: ServerSettings) -> Iterator[tuple[str, grpc.GenericRpcHandler]]:
    """By name, what generates."""
    yield SERVICE, GenerationServicer(intake).handlers()
    if settings.vllm_engine:
        try:
            from server.rpc.vllm_engine import servicer as vllm_engine
        except ImportError as error:
            message = f"--vllm-engine needs the protocol: install with pip install '.[gateway]' ({error})"
            raise GatewayNotInstalled(message) from error
        yield vllm_engine.SERVICE, vllm_engine.VllmEngineServicer(intake).handlers()


def _ages(settings: ServerSettings) -> Iterator[tuple[str, int]]:
    if settings.max_connection_age is not None:
        yield "grpc.max_connection_age_ms", round(1000 * settings.max_connection_age)
    if settings.max_connection_age_grace is not None:
        yield "grpc.max_connection_age_grace_ms", round(1000 * settings.max_connection_age_grace)


def _check_bindable(host: str, port: int) -> None:
    """Raises OSError with the system's reason, which gRPC writes to standard error and not into its exception."""
    family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    socket.create_server((host, port), family=family).close()

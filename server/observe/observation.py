"""The Observation: what can be seen of the server from outside, beside its logs: metrics on their port, and traces."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.engine.engine import Engine
from server.observe.call_record import CallObserver
from server.observe.metrics import Metrics
from server.observe.metrics_server import MetricsServer

if TYPE_CHECKING:
    from server.observe.tracing import Tracing


class TracingNotInstalled(Exception):
    """Traces are asked for and OpenTelemetry is not there."""


@dataclass(frozen=True, slots=True)
class ObservationSettings:
    metrics_host: str
    metrics_port: int | None
    """0 takes any free one; None serves no metrics."""
    otlp_endpoint: str | None
    """The URL of an OTLP collector; None makes no traces."""


class Observation:
    """Raises TracingNotInstalled."""

    def __init__(self, engine: Engine, settings: ObservationSettings, refusal_reasons: Iterable[str] = ()) -> None:
        self.observers: tuple[CallObserver, ...] = ()
        self._metrics_server: MetricsServer | None = None
        self._tracing: Tracing | None = None
        if settings.metrics_port is not None:
            metrics = Metrics(engine, refusal_reasons)
            self._metrics_server = MetricsServer(metrics, settings.metrics_host, settings.metrics_port)
            self.observers += (metrics,)
        if settings.otlp_endpoint is not None:
            self._tracing = _tracing(settings.otlp_endpoint)
            self.observers += (self._tracing,)

    async def start(self) -> int | None:
        """The port of the metrics, where they are served. Raises CannotServeMetrics."""
        return None if self._metrics_server is None else await self._metrics_server.start()

    async def stop(self) -> None:
        if self._metrics_server is not None:
            await self._metrics_server.stop()
        if self._tracing is not None:
            await self._tracing.close()


def _tracing(endpoint: str) -> "Tracing":
    try:
        from server.observe.tracing import tracing_to
    except ImportError as error:
        raise TracingNotInstalled(
            f"--otlp-endpoint needs OpenTelemetry: install with pip install '.[tracing]' ({error})"
        ) from error
    return tracing_to(endpoint)

"""grpc.health.v1, as the engine is.

The server as a whole ("") and GenerationService are SERVING while the engine takes work and gets on with it: an
orchestrator's readiness. "liveness" is SERVING as long as the scheduler makes progress, whatever the load, also while
the model loads and while the server drains: an orchestrator's reason to leave the process alone.
"""

import asyncio
import contextlib

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio  # type: ignore[attr-defined]  # public, and not in the stub's __all__

from server.engine.engine import Engine, Lifecycle

LIVENESS = "liveness"
POLL_INTERVAL = 0.5
"""Seconds between two looks at the scheduler's progress; a change of the engine's lifecycle shows at once."""

Status = health_pb2.HealthCheckResponse


class HealthServicer(aio.HealthServicer):
    """The stock one, with the method that it lacks."""

    async def List(self, request: object, context: object) -> health_pb2.HealthListResponse:  # noqa: ARG002, N802
        statuses = {name: Status(status=status) for name, status in self._server_status.items()}
        return health_pb2.HealthListResponse(statuses=statuses)


class Health:
    def __init__(self, engine: Engine, services: tuple[str, ...]) -> None:
        self.servicer = HealthServicer()
        self._engine = engine
        self._services = ("", *services)

    async def follow(self) -> None:
        """Keeps the statuses true until cancelled."""
        while True:
            seen = self._engine.lifecycle
            await self.update()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._engine.lifecycle_after(seen), POLL_INTERVAL)

    async def update(self) -> None:
        progresses = self._engine.is_making_progress()
        ready = progresses and self._engine.lifecycle is Lifecycle.READY
        for service in self._services:
            await self.servicer.set(service, Status.SERVING if ready else Status.NOT_SERVING)
        await self.servicer.set(LIVENESS, Status.SERVING if progresses else Status.NOT_SERVING)

from collections.abc import Iterator

import pytest

from tests.client.callers import AsyncCaller, Caller, SyncCaller
from tests.client.scripted import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer.start()
    yield server
    server.stop()


@pytest.fixture(params=[SyncCaller, AsyncCaller], ids=["sync", "async"])
def caller(request: pytest.FixtureRequest, server: ScriptedServer) -> Caller:
    """Calls the server through one of the two clients."""
    made: Caller = request.param(server.address)
    return made

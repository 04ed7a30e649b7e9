from collections.abc import AsyncIterator

import pytest

from tests.server.rpc.serving import Serving, Start


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a Serving and closes it after the test."""
    started: list[Serving] = []

    async def start_one(serving: Serving) -> Serving:
        started.append(serving)
        return await serving.start()

    yield start_one
    for serving in started:
        await serving.close()


@pytest.fixture
async def serving(start: Start) -> Serving:
    """A server that is ready."""
    return await (await start(Serving())).ready()

from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2

from server.engine.engine import Lifecycle, Served
from tests.server.rpc.serving import ENGINE, Serving, Start, generate_request

SERVICE = "treadle.v1.GenerationService"
Status = health_pb2.HealthCheckResponse


async def statuses(serving: Serving) -> dict[str, str]:
    return {service: await serving.health_of(service) for service in ("", SERVICE, "liveness")}


async def until(serving: Serving, service: str, status: int) -> None:
    async for answer in serving.health.Watch(health_pb2.HealthCheckRequest(service=service)):
        if answer.status == status:
            return
    raise AssertionError("Watch ended")


async def test_ready_only_when_the_model_is_and_alive_before(start: Start) -> None:
    serving = Serving()
    serving.loading.close()
    await start(serving)
    assert await statuses(serving) == {"": "NOT_SERVING", SERVICE: "NOT_SERVING", "liveness": "SERVING"}
    watch = aiter(serving.health.Watch(health_pb2.HealthCheckRequest(service=SERVICE)))
    assert (await anext(watch)).status == Status.NOT_SERVING
    serving.loading.open()
    assert (await anext(watch)).status == Status.SERVING
    assert await statuses(serving) == {"": "SERVING", SERVICE: "SERVING", "liveness": "SERVING"}


async def test_a_draining_server_is_not_ready_and_is_alive_and_watch_stays_open(serving: Serving) -> None:
    call = await serving.hold_steps(generate_request())
    watch = aiter(serving.health.Watch(health_pb2.HealthCheckRequest()))
    assert (await anext(watch)).status == Status.SERVING
    serving.engine.drain()
    assert (await anext(watch)).status == Status.NOT_SERVING
    assert await statuses(serving) == {"": "NOT_SERVING", SERVICE: "NOT_SERVING", "liveness": "SERVING"}
    serving.steps.open()
    assert [event async for event in call][-1].HasField("result")


async def test_a_scheduler_that_is_stuck_is_neither_ready_nor_alive_until_it_goes_on(start: Start) -> None:
    serving = await (await start(Serving(engine_settings=replace(ENGINE, stuck_after=0.2)))).ready()
    await until(serving, "liveness", Status.SERVING)
    call = await serving.hold_steps(generate_request())
    await until(serving, "liveness", Status.NOT_SERVING)
    assert await serving.health_of("") == "NOT_SERVING"
    serving.steps.open()
    assert [event async for event in call][-1].HasField("result")
    await until(serving, "liveness", Status.SERVING)
    await until(serving, "", Status.SERVING)


async def test_an_engine_that_cannot_load_is_neither_ready_nor_alive(start: Start) -> None:
    class Unloadable(Serving):
        def load(self) -> Served:
            raise OSError("no such model")

    serving = await start(Unloadable())
    assert await serving.engine.lifecycle_after(Lifecycle.LOADING) is Lifecycle.FAILED
    await until(serving, "liveness", Status.NOT_SERVING)
    assert set((await statuses(serving)).values()) == {"NOT_SERVING"}


async def test_health_answers_while_a_step_is_held(serving: Serving) -> None:
    call = await serving.hold_steps(generate_request())
    assert await serving.health_of("") == "SERVING"
    serving.steps.open()
    assert [event async for event in call][-1].HasField("result")


async def test_an_unknown_service_is_not_found(serving: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await serving.health_of("nonesuch")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_all_services_are_listed_with_their_statuses(serving: Serving) -> None:
    answer = await serving.health.List(health_pb2.HealthListRequest())
    assert set(answer.statuses) == {"", "treadle.v1.GenerationService", "liveness"}
    assert all(each.status == health_pb2.HealthCheckResponse.SERVING for each in answer.statuses.values())

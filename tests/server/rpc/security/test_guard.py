"""What the guard asks for before each method."""

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from treadle.v1 import generation_pb2 as pb

from server.rpc.security.access import VLLM_ENGINE, Access, access_table
from server.rpc.security.caller import Scope
from server.rpc.security.guard import Guard
from server.rpc.security.settings import SecuritySettings
from tests.server.rpc.security.callers import (
    bearer,
    code_of_health,
    code_of_reflection,
    refused,
    secured,
    token_line,
)
from tests.server.rpc.serving import Refusal, Serving, Start, generate_request

OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
TABLE = access_table(is_health_open=True, is_reflection_open=False)
SERVICES = [
    pb.DESCRIPTOR.services_by_name["GenerationService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
]


async def start_with(
    start: Start, directory: Path, *, is_health_open: bool = True, is_reflection_open: bool = False
) -> Serving:
    path = directory / "tokens"
    path.write_text(token_line("alice", "right") + token_line("operator", "admin", "admin"))
    settings = SecuritySettings(tokens_file=path, is_health_open=is_health_open, is_reflection_open=is_reflection_open)
    return await (await start(secured(settings))).ready()


def test_every_method_that_is_served_is_in_the_table() -> None:
    paths = {f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods}
    assert paths <= set(TABLE)
    open_ones = {path for path, access in TABLE.items() if access is not Access.GENERATE}
    assert {path for path in open_ones if not path.startswith("/grpc.")} == {f"/{VLLM_ENGINE}/HealthCheck"}


def test_every_method_of_the_gateways_service_that_is_served_is_in_the_table() -> None:
    gateway = pytest.importorskip("server.rpc.vllm_engine.servicer", exc_type=ImportError)
    unserved = {"Embed", "FlushCache", "StartProfile", "StopProfile", "SubscribeKvEvents"}
    methods = {method.name for method in gateway.pb.DESCRIPTOR.services_by_name["VllmEngine"].methods}
    assert gateway.SERVICE == VLLM_ENGINE
    assert {path for path in TABLE if VLLM_ENGINE in path} == {f"/{VLLM_ENGINE}/{name}" for name in methods - unserved}


async def test_every_method_of_the_service_needs_a_credential(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path)
    for method in SERVICES[0].methods:
        path = f"/{SERVICES[0].full_name}/{method.name}"
        call = serving.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        assert await call(b"\xff").code() is UNAUTHENTICATED, method.name
        assert await call(b"\xff", metadata=bearer("admin")).code() is grpc.StatusCode.PERMISSION_DENIED, method.name
        assert await call(b"\xff", metadata=bearer("right")).code() is grpc.StatusCode.INVALID_ARGUMENT, method.name


async def test_a_method_that_is_not_in_the_table_is_refused(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(TABLE, "/treadle.v1.GenerationService/Generate")
    monkeypatch.setattr("server.rpc.security.security.access_table", lambda **_: TABLE)
    serving = await start_with(start, tmp_path)
    assert (await refused(serving)).code is UNAUTHENTICATED
    refusal = await refused(serving, bearer("right"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.PERMISSION_DENIED, "METHOD_NOT_ALLOWED")


async def test_a_method_that_is_not_served_is_unimplemented_to_everybody(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path)
    for metadata in ((), bearer("right")):
        path = "/treadle.v1.GenerationService/Guess"
        call = serving.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        assert await call(b"", metadata=metadata).code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_scope_does_not_contain_another() -> None:
    assert {access: access.scope for access in Access} == {
        Access.ANYBODY: None,
        Access.ANY_IDENTITY: None,
        Access.GENERATE: Scope.GENERATE,
        Access.ADMIN: Scope.ADMIN,
    }


async def test_health_is_open_and_reflection_closed_unless_set_otherwise(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path)
    assert await code_of_health(serving) is OK
    assert await code_of_health(serving, bearer("wrong")) is OK
    assert await code_of_reflection(serving) is UNAUTHENTICATED
    assert await code_of_reflection(serving, bearer("right")) is OK
    assert await code_of_reflection(serving, bearer("admin")) is OK


async def test_health_can_be_closed_and_reflection_opened(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path, is_health_open=False, is_reflection_open=True)
    assert await code_of_health(serving) is UNAUTHENTICATED
    assert await code_of_health(serving, bearer("right")) is OK
    assert await code_of_reflection(serving) is OK


async def test_a_closed_health_refuses_with_our_details(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path, is_health_open=False)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await serving.health_of("")
    assert Refusal.of(error.value).reason == "MISSING_CREDENTIAL"


async def test_a_refused_message_is_not_read_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path)
    huge = generate_request("x" * (2 << 20))  # more than gRPC would take, which it would say if it read it
    call = serving.stub.Generate(huge)
    assert await call.code() is UNAUTHENTICATED
    await serving.server.idle()
    assert serving.is_empty()
    assert serving.engine.load().tokens_generated == 0


async def test_a_mistake_in_the_guard_refuses(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("inside story")

    serving = await start_with(start, tmp_path)
    monkeypatch.setattr(Guard, "_check", fail)
    refusal = await refused(serving, bearer("right"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, "UNEXPECTED")
    assert serving.engine.load().tokens_generated == 0


async def test_without_credentials_configured_everybody_is_served(serving: Serving) -> None:
    assert (await serving.events(generate_request()))[-1].HasField("result")
    assert await code_of_reflection(serving) is OK

"""Calls with a credential, and what came of them."""

import hashlib
from collections.abc import AsyncIterable
from dataclasses import replace
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

from server.rpc.security.settings import SecuritySettings
from tests.server.rpc.security.authority import SERVER_NAME, Certified
from tests.server.rpc.serving import SERVER, Refusal, Serving, generate_request, refusal

Metadata: TypeAlias = tuple[tuple[str, str], ...]


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def token_line(name: str, token: str, scopes: str = "") -> str:
    line = f"{name}:{hashlib.sha256(token.encode()).hexdigest()}"
    return f"{line}:{scopes}\n" if scopes else f"{line}\n"


def secured(security: SecuritySettings) -> Serving:
    return Serving(server_settings=replace(SERVER, security=security))


async def refused(serving: Serving, metadata: Metadata = ()) -> Refusal:
    """How Generate is refused."""
    return await refusal(serving.stub.Generate(generate_request(), metadata=metadata))


async def is_served(serving: Serving, metadata: Metadata = ()) -> bool:
    call = serving.stub.Generate(generate_request(), metadata=metadata)
    return [event async for event in call][-1].HasField("result")


async def code_of(call: AsyncIterable[object]) -> grpc.StatusCode:
    """Of a stream, which is read to its end."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def code_of_health(serving: Serving, metadata: Metadata = ()) -> grpc.StatusCode:
    stub = health_pb2_grpc.HealthStub(serving.channel)
    code: grpc.StatusCode = await stub.Check(health_pb2.HealthCheckRequest(), metadata=metadata).code()
    return code


async def code_of_reflection(serving: Serving, metadata: Metadata = ()) -> grpc.StatusCode:
    stub = reflection_pb2_grpc.ServerReflectionStub(serving.channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    return await code_of(stub.ServerReflectionInfo(iter([question]), metadata=metadata))


def secure_channel(port: int, root: bytes, client: Certified | None = None) -> grpc.aio.Channel:
    """With sessions of its own: nothing of an earlier handshake is used again."""
    key, certificate = (None, None) if client is None else (client.key, client.certificate)
    credentials = grpc.ssl_channel_credentials(root, key, certificate)
    options = (("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.use_local_subchannel_pool", 1))
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options)


async def code_over(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """Of a call over the channel, which is closed then."""
    async with channel:
        return await GenerationServiceStub(channel).Tokenize(pb.TokenizeRequest(text="x")).code()

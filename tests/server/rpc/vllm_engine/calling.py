"""Calls to VllmEngine, of a server over the fake model, as a gateway makes them."""

import asyncio
from collections.abc import AsyncIterable
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from tests.server.rpc.serving import PATIENCE, SERVER, Refusal, Serving

SETTINGS = replace(SERVER, vllm_engine=True)
PROMPT = tuple(b"hello")

GenerateCall: TypeAlias = "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"


def stub_of(serving: Serving) -> "vllm_engine_pb2_grpc.VllmEngineStub":
    return vllm_engine_pb2_grpc.VllmEngineStub(serving.channel)


def asking(
    *, stream: bool = True, request_id: str = "", prompt: tuple[int, ...] = PROMPT, **params: Any
) -> pb.GenerateRequest:
    """As the gateway fills it in: what it always sets is set."""
    always: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "n": 1}
    sampling = pb.SamplingParams(**{**always, "skip_special_tokens": True, "ignore_eos": True, **params})
    tokenized = pb.TokenizedInput(input_ids=prompt)
    return pb.GenerateRequest(request_id=request_id, tokenized=tokenized, sampling_params=sampling, stream=stream)


async def answers(serving: Serving, request: pb.GenerateRequest) -> list[pb.GenerateResponse]:
    return [response async for response in stub_of(serving).Generate(request)]


async def refusal_of(call: AsyncIterable[object]) -> Refusal:
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return Refusal.of(error)
    raise AssertionError("the call ended OK")


async def held(serving: Serving, request: pb.GenerateRequest) -> GenerateCall:
    """A generation whose first step does not end until `serving.steps` opens."""
    serving.steps.close()
    call: GenerateCall = stub_of(serving).Generate(request)
    assert await asyncio.to_thread(serving.steps.reached.wait, PATIENCE)
    return call

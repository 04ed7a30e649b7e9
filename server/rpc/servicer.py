"""GenerationService: each method reads as what it does.

How a call ends is `call.py`, and what an error means to its client `statuses.py`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message
from treadle.v1 import generation_pb2 as pb

from server.engine.constraint import Constraint, ConstraintCompiler
from server.engine.engine import Engine, Lifecycle, Served
from server.engine.errors import Draining, InvalidArgument
from server.engine.events import Failure, Result, Started, Tokens
from server.engine.result_stream import ResultStream
from server.engine.tokenizer import Tokenizer
from server.rpc import from_wire, to_wire
from server.rpc.call import Call, Context, OpenCalls
from server.rpc.decoding import decode
from server.rpc.errors import EndedWithoutResult, MessageTooLarge
from server.rpc.text_workers import TextWorkers

SERVICE = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name

SMALL_MESSAGE_BYTES = 64 * 1024
"""Parsed in less time than it takes to hand them to another thread."""

AnyMessage = TypeVar("AnyMessage", bound=Message)


@dataclass(frozen=True, slots=True)
class ServicerSettings:
    max_message_bytes: int
    log_prompts: bool


class GenerationServicer:
    """The methods take their request as bytes: `decoding.py` says why."""

    def __init__(
        self,
        engine: Engine,
        calls: OpenCalls,
        workers: TextWorkers,
        compilers: TextWorkers,
        settings: ServicerSettings,
    ) -> None:
        self._engine = engine
        self._calls = calls
        self._workers = workers
        self._compilers = compilers
        self._settings = settings

    def handlers(self) -> grpc.GenericRpcHandler:
        def unary(method: Callable[..., object], response: type[Message]) -> "grpc.RpcMethodHandler[bytes, Message]":
            return grpc.unary_unary_rpc_method_handler(method, response_serializer=response.SerializeToString)

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Generate": grpc.unary_stream_rpc_method_handler(
                    self.generate, response_serializer=pb.GenerateResponse.SerializeToString
                ),
                "Complete": unary(self.complete, pb.CompleteResponse),
                "Tokenize": unary(self.tokenize, pb.TokenizeResponse),
                "Detokenize": unary(self.detokenize, pb.DetokenizeResponse),
                "GetModel": unary(self.get_model, pb.GetModelResponse),
                "GetLoad": unary(self.get_load, pb.GetLoadResponse),
            },
        )

    async def generate(self, raw: bytes, context: Context) -> None:
        async with self._calls.open("Generate", context) as call:
            message = await self._decode(pb.GenerateRequest, raw)
            call.name(message.request_id)
            shown = to_wire.output(message.output)
            async with self._generation(call, message) as stream:
                async for event in _events(stream):
                    call.hear(event)
                    response = to_wire.response(event, call.request_id, shown)
                    if response is not None:
                        await context.write(response)

    async def complete(self, raw: bytes, context: Context) -> pb.CompleteResponse:
        async with self._calls.open("Complete", context) as call:
            message = await self._decode(pb.CompleteRequest, raw)
            if not message.HasField("generate"):
                raise InvalidArgument("generate", "unset", "must be set")
            completion = to_wire.Completion()
            with from_wire.fields_of("generate"):
                call.name(message.generate.request_id)
                shown = to_wire.output(message.generate.output)
                async with self._generation(call, message.generate) as stream:
                    async for event in _events(stream):
                        call.hear(event)
                        completion.hear(event)
            return completion.response(call.request_id, shown)

    async def tokenize(self, raw: bytes, context: Context) -> pb.TokenizeResponse:
        async with self._calls.open("Tokenize", context):
            message = await self._decode(pb.TokenizeRequest, raw)
            return await self._workers.run(_tokenize, message, self._served().tokenizer)

    async def detokenize(self, raw: bytes, context: Context) -> pb.DetokenizeResponse:
        async with self._calls.open("Detokenize", context):
            message = await self._decode(pb.DetokenizeRequest, raw)
            return await self._workers.run(_detokenize, message, self._served())

    async def get_model(self, raw: bytes, context: Context) -> pb.GetModelResponse:
        async with self._calls.open("GetModel", context):
            await self._decode(pb.GetModelRequest, raw)
            return to_wire.model(self._engine.served, self._engine.settings, self._settings.max_message_bytes)

    async def get_load(self, raw: bytes, context: Context) -> pb.GetLoadResponse:
        async with self._calls.open("GetLoad", context):
            await self._decode(pb.GetLoadRequest, raw)
            return to_wire.load(self._engine.load())

    @asynccontextmanager
    async def _generation(self, call: Call, message: pb.GenerateRequest) -> AsyncIterator[ResultStream]:
        """The message's generation, in the engine from here until the block is left, however it is left."""
        served = self._served()
        constraint = await self._constraint(message, served.constraints)
        request = await self._workers.run(
            from_wire.request, message, call.request_id, call.arrived_at, served, constraint
        )
        if self._settings.log_prompts:
            decode_prompt = partial(served.tokenizer.decode, request.prompt_token_ids, keep_special_tokens=True)
            call.prompt, call.text = await self._workers.run(decode_prompt), ""
        stream = self._engine.submit(request)
        try:
            yield stream
        finally:
            self._engine.cancel(stream)

    async def _constraint(self, message: pb.GenerateRequest, compiler: ConstraintCompiler) -> Constraint | None:
        """Compiled by threads of its own: one that is slow holds up no text, and nothing that is compiled already."""
        if not message.HasField("constraint"):
            return None
        source = from_wire.constraint(message.constraint)
        return compiler.cached(source) or await self._compilers.run(compiler.compile, source)

    async def _decode(self, message_class: type[AnyMessage], raw: bytes) -> AnyMessage:
        limit = self._settings.max_message_bytes
        if len(raw) > limit:
            raise MessageTooLarge(f"the request message has {len(raw)} bytes: must be at most {limit}")
        if len(raw) <= SMALL_MESSAGE_BYTES:
            return decode(message_class, raw)
        return await self._workers.run(decode, message_class, raw)

    def _served(self) -> Served:
        """What new work is done with; refused before anything is spent on it where there can be none."""
        if self._engine.lifecycle in (Lifecycle.DRAINING, Lifecycle.STOPPED):
            raise Draining("the server is shutting down")
        return self._engine.served


async def _events(stream: ResultStream) -> AsyncIterator[Started | Tokens | Result]:
    """Ends with the Result; raises the Failure's error."""
    async for event in stream:
        if isinstance(event, Failure):
            raise event.error
        yield event
        if isinstance(event, Result):
            return
    raise EndedWithoutResult("the generation ended without a result")


def _tokenize(message: pb.TokenizeRequest, tokenizer: Tokenizer) -> pb.TokenizeResponse:
    token_ids = from_wire.text_or_chat(message, tokenizer)
    return pb.TokenizeResponse(token_ids=token_ids, tokens=tokenizer.tokens(token_ids))


def _detokenize(message: pb.DetokenizeRequest, served: Served) -> pb.DetokenizeResponse:
    token_ids = list(message.token_ids)
    from_wire.check_known(token_ids, served.model.description)
    text = served.tokenizer.decode(token_ids, keep_special_tokens=message.keep_special_tokens)
    return pb.DetokenizeResponse(text=text)

"""GenerationService: each method reads as what it does.

How a call ends is `call.py`, and what an error means to its client `statuses.py`.
"""

import time
from collections.abc import Callable, Sequence

import grpc
from google.protobuf.message import Message
from treadle.v1 import generation_pb2 as pb

from server.engine.engine import Served
from server.engine.errors import InvalidArgument
from server.engine.events import Result
from server.rpc import from_wire, to_wire
from server.rpc.call import SERVICE, Call, Context
from server.rpc.completions import Completions
from server.rpc.constraint_from_wire import constraint
from server.rpc.counts import check_count
from server.rpc.duration import seconds
from server.rpc.generations import Generations, in_engine
from server.rpc.intake import Intake
from server.rpc.prompt_from_wire import check_known, text_or_chat
from server.rpc.text_workers import TextWorkers

MAX_DETOKENIZED = 1 << 18
"""Token ids in a DetokenizeRequest."""


class GenerationServicer:
    """The methods take their request as bytes: `decoding.py` says why. Large answers are serialized by the workers."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._engine, self._calls, self._workers = intake.engine, intake.calls, intake.workers

    def handlers(self) -> grpc.GenericRpcHandler:
        def unary(method: Callable[..., object]) -> "grpc.RpcMethodHandler[bytes, Message | bytes]":
            return grpc.unary_unary_rpc_method_handler(method, response_serializer=_serialized)

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Generate": grpc.unary_stream_rpc_method_handler(
                    self.generate, response_serializer=pb.GenerateResponse.SerializeToString
                ),
                "Complete": unary(self.complete),
                "Tokenize": unary(self.tokenize),
                "Detokenize": unary(self.detokenize),
                "GetModel": unary(self.get_model),
                "GetLoad": unary(self.get_load),
            },
        )

    async def generate(self, raw: bytes, context: Context) -> None:
        async with self._calls.open("Generate", context) as call:
            call.account.check_tokens()
            message = await self._intake.decode(call, pb.GenerateRequest, raw)
            if message.sampling.HasField("best_of"):
                raise InvalidArgument("sampling.best_of", message.sampling.best_of, "must be unset but in Complete")
            asked = await self._asked(call, message)
            async with in_engine(self._engine, asked, call) as stream:
                generations = Generations(asked, stream, call, self._engine.served.tokenizer)
                async for told in generations.told(self._workers.text):
                    for response in told.messages:
                        await context.write(response)

    async def complete(self, raw: bytes, context: Context) -> bytes | None:
        async with self._calls.open("Complete", context) as call:
            call.account.check_tokens()
            message = await self._intake.decode(call, pb.CompleteRequest, raw)
            if not message.HasField("generate"):
                raise InvalidArgument("generate", "unset", "must be set")
            with from_wire.fields_of("generate", but_not="inputs"):
                _check_for_complete(message.generate.output)
                asked = await self._asked(call, message.generate, message.inputs)
                completions = Completions(len(asked.requests), asked.counts.made, asked.counts.best)
                async with in_engine(self._engine, asked, call) as stream:
                    generations = Generations(asked, stream, call, self._engine.served.tokenizer)
                    async for told in generations.told(self._workers.text):
                        completions.hear(told.messages)
                        if isinstance(told.event, Result):
                            completions.end(told.index, told.event)
            return await self._workers.text.run(completions.answer, call.request_id)

    async def tokenize(self, raw: bytes, context: Context) -> bytes:
        async with self._calls.open("Tokenize", context) as call:
            message = await self._intake.decode(call, pb.TokenizeRequest, raw)
            return await self._workers_for(message.chat).run(_tokenize, message, self._intake.served())

    async def detokenize(self, raw: bytes, context: Context) -> bytes:
        async with self._calls.open("Detokenize", context) as call:
            message = await self._intake.decode(call, pb.DetokenizeRequest, raw)
            return await self._workers.text.run(_detokenize, message, self._intake.served())

    async def get_model(self, raw: bytes, context: Context) -> pb.GetModelResponse:
        async with self._calls.open("GetModel", context) as call:
            await self._intake.decode(call, pb.GetModelRequest, raw)
            return to_wire.model(self._engine.served, self._engine.settings, self._intake.settings.max_message_bytes)

    async def get_load(self, raw: bytes, context: Context) -> pb.GetLoadResponse:
        async with self._calls.open("GetLoad", context) as call:
            await self._intake.decode(call, pb.GetLoadRequest, raw)
            return to_wire.load(self._engine.load())

    async def _asked(self, call: Call, message: pb.GenerateRequest, inputs: Sequence[pb.Input] = ()) -> from_wire.Asked:
        """The message read whole, ready for the engine."""
        call.name(message.request_id)
        check_count("inputs", len(inputs), self._engine.settings.max_generations)
        served = self._intake.served()
        compiled = None
        if message.HasField("constraint"):
            compiled = await self._intake.compiled(
                constraint(message.constraint), served, _time_left(call, message.stopping)
            )
        asked = await self._workers_for(message.chat, *(each.chat for each in inputs)).run(
            from_wire.asked,
            message,
            inputs,
            from_wire.Arrival(call.request_id, call.is_id_claimed, call.arrived_at),
            served,
            compiled,
            self._engine.settings.max_generations,
        )
        await self._intake.note(call, asked, served)
        return asked

    def _workers_for(self, *chats: pb.Chat) -> TextWorkers:
        """A chat's own template may take seconds."""
        return self._workers.templates if any(chat.template for chat in chats) else self._workers.text


def _check_for_complete(message: pb.OutputOptions) -> None:
    """Raises InvalidArgument where a stream's options are set."""
    for field, is_set in (("chunk_interval", message.HasField("chunk_interval")), ("usage", message.usage)):
        if is_set:
            raise InvalidArgument(f"output.{field}", "set", "must be unset but in Generate")


def _time_left(call: Call, message: pb.StoppingCriteria) -> float | None:
    """Seconds of the request's time limit, below 0 where it has passed; None where there is none."""
    if not message.HasField("time_limit"):
        return None
    return call.arrived_at + seconds("stopping.time_limit", message.time_limit) - time.monotonic()


def _serialized(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _tokenize(message: pb.TokenizeRequest, served: Served) -> bytes:
    token_ids = text_or_chat(message, served)
    return pb.TokenizeResponse(token_ids=token_ids, tokens=served.tokenizer.tokens(token_ids)).SerializeToString()


def _detokenize(message: pb.DetokenizeRequest, served: Served) -> bytes:
    check_count("token_ids", len(message.token_ids), MAX_DETOKENIZED)
    token_ids = list(message.token_ids)
    check_known(token_ids, served.model.description)
    text = served.tokenizer.decode(token_ids, keep_special_tokens=message.keep_special_tokens)
    return pb.DetokenizeResponse(text=text).SerializeToString()

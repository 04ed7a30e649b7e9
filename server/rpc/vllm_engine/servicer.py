"""vllm.grpc.engine.VllmEngine: the same engine for gateways that speak this protocol, such as smg.

The protocol is https://pypi.org/project/smg-grpc-proto, Apache-2.0, whose generated modules are used as they are.
Prompts come as token ids and generations leave as token ids: chat templates and texts are the gateway's. What of it is
not served, embeddings among it, is UNIMPLEMENTED.
"""

import asyncio
from collections.abc import Callable

import grpc
from google.protobuf.message import Message
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.engine.errors import SlowReader
from server.engine.events import Result
from server.rpc.call import STATUS_TIME, Call, Context
from server.rpc.from_wire import Arrival, Asked
from server.rpc.generations import heard_of, in_engine
from server.rpc.intake import Intake
from server.rpc.vllm_engine import from_wire, to_wire
from server.rpc.vllm_engine.aborts import Aborts
from server.rpc.vllm_engine.fields import named_as_in_the_message
from server.rpc.vllm_engine.generation_answers import GenerationAnswers
from server.rpc.vllm_engine.tokenizer_archive import TokenizerArchive

SERVICE = pb.DESCRIPTOR.services_by_name["VllmEngine"].full_name


class VllmEngineServicer:
    """The methods take their request as bytes, as those of GenerationServicer do."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._engine, self._workers = intake.engine, intake.workers
        self._aborts = Aborts()
        self._archiving = asyncio.Lock()
        self._archive: TokenizerArchive | None = None

    def handlers(self) -> grpc.GenericRpcHandler:
        def unary(method: Callable[..., object]) -> "grpc.RpcMethodHandler[bytes, Message]":
            return grpc.unary_unary_rpc_method_handler(method, response_serializer=_serialized)

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Generate": grpc.unary_stream_rpc_method_handler(self.generate),
                "GetTokenizer": grpc.unary_stream_rpc_method_handler(
                    self.get_tokenizer, response_serializer=_serialized
                ),
                "Abort": unary(self.abort),
                "HealthCheck": unary(self.health_check),
                "GetModelInfo": unary(self.get_model_info),
                "GetServerInfo": unary(self.get_server_info),
                "GetLoads": unary(self.get_loads),
            },
        )

    async def generate(self, raw: bytes, context: Context) -> None:
        async with self._intake.calls.open("Generate", context, service=SERVICE) as call:
            call.account.check_tokens()
            message = await self._intake.decode(call, pb.GenerateRequest, raw)
            call.name(message.request_id)
            with named_as_in_the_message():
                count = from_wire.generation_count(message.sampling_params, self._engine.settings.max_generations)
                answers = GenerationAnswers(count, is_streamed=message.stream)
                async with self._aborts.abortable(call) as abortion:
                    await self._answer(message, count, answers, call, context)
            if abortion.expired():
                await _tell_ends(answers, context)

    async def abort(self, raw: bytes, context: Context) -> pb.AbortResponse:
        async with self._intake.calls.open("Abort", context, service=SERVICE) as call:
            message = await self._intake.decode(call, pb.AbortRequest, raw)
            self._aborts.abort(call, message.request_ids)
            return pb.AbortResponse()

    async def health_check(self, raw: bytes, context: Context) -> pb.HealthCheckResponse:
        """UNAVAILABLE until the model is warm and from when the server drains: a gateway asks before it sends."""
        async with self._intake.calls.open("HealthCheck", context, service=SERVICE) as call:
            await self._intake.decode(call, pb.HealthCheckRequest, raw)
            self._intake.served()
            progresses = self._engine.is_making_progress()
            return pb.HealthCheckResponse(
                healthy=progresses, message="ready" if progresses else "the scheduler makes no progress"
            )

    async def get_model_info(self, raw: bytes, context: Context) -> pb.GetModelInfoResponse:
        async with self._intake.calls.open("GetModelInfo", context, service=SERVICE) as call:
            await self._intake.decode(call, pb.GetModelInfoRequest, raw)
            return to_wire.model_info(self._engine.served)

    async def get_server_info(self, raw: bytes, context: Context) -> pb.GetServerInfoResponse:
        async with self._intake.calls.open("GetServerInfo", context, service=SERVICE) as call:
            await self._intake.decode(call, pb.GetServerInfoRequest, raw)
            return to_wire.server_info(self._engine.served, self._engine.settings, self._engine.load())

    async def get_loads(self, raw: bytes, context: Context) -> pb.GetLoadsResponse:
        async with self._intake.calls.open("GetLoads", context, service=SERVICE) as call:
            message = await self._intake.decode(call, pb.GetLoadsRequest, raw)
            return to_wire.loads(message, self._engine.load(), self._engine.counts())

    async def get_tokenizer(self, raw: bytes, context: Context) -> None:
        async with self._intake.calls.open("GetTokenizer", context, service=SERVICE) as call:
            await self._intake.decode(call, common_pb2.GetTokenizerRequest, raw)
            for chunk in (await self._tokenizer_archive()).chunks():
                await context.write(chunk)

    async def _tokenizer_archive(self) -> TokenizerArchive:
        """Made once, whoever asks."""
        async with self._archiving:
            if self._archive is None:
                self._archive = await self._workers.text.run(TokenizerArchive, self._engine.served.tokenizer)
            return self._archive

    async def _answer(
        self, message: pb.GenerateRequest, count: int, answers: GenerationAnswers, call: Call, context: Context
    ) -> None:
        asked = await self._asked(call, message, count)
        answers.show_prompt(asked.requests[0].prompt_token_ids)
        async with in_engine(self._engine, asked, call) as stream:
            async for heard in heard_of(stream, call):
                if answers.is_long(heard):
                    responses = await self._workers.text.run(answers.after, heard)
                else:
                    responses = answers.after(heard)
                if isinstance(heard.event, Result):
                    answers.end(heard.index)
                for response in responses:
                    await context.write(response)

    async def _asked(self, call: Call, message: pb.GenerateRequest, count: int) -> Asked:
        served = self._intake.served()
        source = from_wire.constraint_source(message.sampling_params)
        compiled = None if source is None else await self._intake.compiled(source, served)
        arrival = Arrival(call.request_id, call.is_id_claimed, call.arrived_at)
        asked = await self._workers.text.run(from_wire.asked, message, arrival, served, compiled, count)
        await self._intake.note(call, asked, served)
        return asked


async def _tell_ends(answers: GenerationAnswers, context: Context) -> None:
    """Of an aborted call, whose client may read no more of it. Raises SlowReader then."""
    try:
        async with asyncio.timeout(STATUS_TIME):
            for response in answers.aborted():
                await context.write(response)
    except TimeoutError:
        raise SlowReader("the request was aborted, and its client reads nothing") from None


def _serialized(answer: Message) -> bytes:
    return answer.SerializeToString()

"""The client for asyncio: the same methods as `Client`, awaited."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from treadle import aio_cancellation, from_wire, requests
from treadle.aio_stream import AsyncGenerationStream, ResponseCall
from treadle.connection import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_TARGET, TLS, Connection
from treadle.errors import ClientClosed
from treadle.events import Completion
from treadle.requests import CompleteOptions, GenerateOptions, Input, TokenizeOptions
from treadle.retry import DEFAULT_RETRY, NO_RETRY, Attempts, RetryPolicy
from treadle.server_info import Health, Load, ModelInfo
from treadle.statuses import error_from
from treadle.tokenization import Tokenization
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

Q = TypeVar("Q")
P = TypeVar("P")


class AsyncClient:
    """A connection to a Treadle server, for any number of calls of the event loop it is made on.

    Every method takes `timeout`, the most seconds it may last in all, and raises TreadleError; ClientClosed after
    `close`. What the server did not begin because it could not be reached or was too busy is tried again, as `retry`
    says.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        tls: TLS | None = None,
        token: str | None = None,
        metadata: Mapping[str, str] | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        balance: bool = False,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        """To be called on the event loop. The connection is made by the first call. For the rest see `Connection`."""
        connection = Connection(target, tls, token, metadata or {}, max_message_bytes, balance)
        self._retry, self._metadata = retry, connection.call_metadata()
        if tls is None:
            self._channel = grpc.aio.insecure_channel(target, connection.options())
        else:
            self._channel = grpc.aio.secure_channel(target, tls.credentials(), connection.options())
        self._is_closed = False
        self._stub = GenerationServiceStub(self._channel)
        self._health = HealthStub(self._channel)

    async def close(self) -> None:
        """Ends all calls, whose callers get Cancelled, and the connection."""
        self._is_closed = True
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def generate(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerationStream:
        """Generates from `prompt`, `chat=[...]` or `prompt_token_ids=[...]`; for the rest see `GenerateOptions`."""
        request = requests.generate(prompt, **options)

        def start(remaining: float | None) -> ResponseCall:
            self._check_open()
            return self._stub.Generate(request, timeout=remaining, metadata=self._metadata)

        return AsyncGenerationStream(start, Attempts(self._retry, timeout), requests.generations(request))

    async def complete(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[CompleteOptions]
    ) -> Completion:
        """As `generate`, answered once, at the end. Raises TypeError for an `n` above 1: see `complete_all`.

        A connection that breaks before the answer is Unavailable: the server may have done the work, and it is not
        tried again.
        """
        request = requests.complete(prompt, **options)
        if requests.generations(request.generate) > 1:
            raise TypeError("n is above 1: use complete_all")
        return (await self._completions(request, 1, timeout))[0]

    async def complete_all(
        self,
        prompt: str | None = None,
        *,
        inputs: Sequence[Input] | None = None,
        timeout: float | None = None,
        **options: Unpack[CompleteOptions],
    ) -> tuple[Completion, ...]:
        """All `n` completions of the prompt, chat or token ids, or of each of the `inputs`, by input and index."""
        request = requests.complete(prompt, inputs, **options)
        expected = requests.generations(request.generate) * (1 if inputs is None else len(inputs))
        return await self._completions(request, expected, timeout)

    async def tokenize(
        self, text: str | None = None, *, timeout: float | None = None, **options: Unpack[TokenizeOptions]
    ) -> Tokenization:
        """The tokens of a prompt or, through the model's template, of `chat=[...]`."""
        request = requests.tokenize(text, **options)
        return from_wire.tokenization(await self._ask(self._stub.Tokenize, request, timeout))

    async def detokenize(
        self, token_ids: Sequence[int], *, keep_special_tokens: bool = False, timeout: float | None = None
    ) -> str:
        """The text of token ids."""
        request = requests.detokenize(token_ids, keep_special_tokens)
        return (await self._ask(self._stub.Detokenize, request, timeout)).text

    async def model(self, *, timeout: float | None = None) -> ModelInfo:
        """The model that is served, what it can do, its limits and its defaults."""
        return from_wire.model_info(await self._ask(self._stub.GetModel, pb.GetModelRequest(), timeout))

    async def load(self, *, timeout: float | None = None) -> Load:
        """How busy the server is now."""
        return from_wire.load(await self._ask(self._stub.GetLoad, pb.GetLoadRequest(), timeout))

    async def health(self, service: str = "", *, timeout: float | None = None) -> Health:
        """Whether the server serves: "" asks for all of it, "liveness" for whether it makes progress. Not retried."""
        request = health_pb2.HealthCheckRequest(service=service)
        return from_wire.health(await self._answer(self._health.Check, request, Attempts(NO_RETRY, timeout)))

    async def _completions(
        self, request: pb.CompleteRequest, expected: int, timeout: float | None
    ) -> tuple[Completion, ...]:
        attempts = Attempts(self._retry, timeout, refusals_only=True)
        return from_wire.completions(await self._answer(self._stub.Complete, request, attempts), expected)

    async def _ask(self, method: "grpc.aio.UnaryUnaryMultiCallable[Q, P]", request: Q, timeout: float | None) -> P:
        """For what costs the server little."""
        return await self._answer(method, request, Attempts(self._retry, timeout))

    async def _answer(self, method: "grpc.aio.UnaryUnaryMultiCallable[Q, P]", request: Q, attempts: Attempts) -> P:
        while True:
            self._check_open()
            try:
                return await method(request, timeout=attempts.begin(), metadata=self._metadata)
            except asyncio.CancelledError as error:
                if aio_cancellation.is_of_the_task():
                    raise
                raise aio_cancellation.of_the_call() from error
            except grpc.RpcError as error:
                pause = attempts.pause_after(error_from(error))
            await asyncio.sleep(pause)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed

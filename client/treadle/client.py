"""The client for ordinary code; `aio` has the one for asyncio."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from treadle import from_wire, requests
from treadle.connection import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_TARGET, TLS, Connection
from treadle.errors import ClientClosed
from treadle.events import Completion
from treadle.requests import CompleteOptions, GenerateOptions, Input, TokenizeOptions
from treadle.retry import DEFAULT_RETRY, NO_RETRY, Attempts, RetryPolicy
from treadle.server_info import Health, Load, ModelInfo
from treadle.statuses import error_from
from treadle.stream import GenerationStream, ResponseCall
from treadle.tokenization import Tokenization
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

Q = TypeVar("Q")
P = TypeVar("P")


class Client:
    """A connection to a Treadle server, for any number of calls from any number of threads.

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
        """The connection is made by the first call. For the parameters see `Connection`."""
        connection = Connection(target, tls, token, metadata or {}, max_message_bytes, balance)
        self._retry, self._metadata = retry, connection.call_metadata()
        if tls is None:
            self._channel = grpc.insecure_channel(target, connection.options())
        else:
            self._channel = grpc.secure_channel(target, tls.credentials(), connection.options())
        self._is_closed = False
        self._stub = GenerationServiceStub(self._channel)
        self._health = HealthStub(self._channel)

    def close(self) -> None:
        """Ends all calls, whose callers get Cancelled, and the connection."""
        self._is_closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerationStream:
        """Generates from `prompt`, `chat=[...]` or `prompt_token_ids=[...]`; for the rest see `GenerateOptions`."""
        request = requests.generate(prompt, **options)

        def start(remaining: float | None) -> ResponseCall:
            with self._unless_closed():
                return self._stub.Generate(request, timeout=remaining, metadata=self._metadata)

        return GenerationStream(start, Attempts(self._retry, timeout), requests.generations(request))

    def complete(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[CompleteOptions]
    ) -> Completion:
        """As `generate`, answered once, at the end. Raises TypeError for an `n` above 1: see `complete_all`.

        A connection that breaks before the answer is Unavailable: the server may have done the work, and it is not
        tried again.
        """
        request = requests.complete(prompt, **options)
        if requests.generations(request.generate) > 1:
            raise TypeError("n is above 1: use complete_all")
        return self._completions(request, 1, timeout)[0]

    def complete_all(
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
        return self._completions(request, expected, timeout)

    def tokenize(
        self, text: str | None = None, *, timeout: float | None = None, **options: Unpack[TokenizeOptions]
    ) -> Tokenization:
        """The tokens of a prompt or, through the model's template, of `chat=[...]`."""
        request = requests.tokenize(text, **options)
        return from_wire.tokenization(self._ask(self._stub.Tokenize, request, timeout))

    def detokenize(
        self, token_ids: Sequence[int], *, keep_special_tokens: bool = False, timeout: float | None = None
    ) -> str:
        """The text of token ids."""
        request = requests.detokenize(token_ids, keep_special_tokens)
        return self._ask(self._stub.Detokenize, request, timeout).text

    def model(self, *, timeout: float | None = None) -> ModelInfo:
        """The model that is served, what it can do, its limits and its defaults."""
        return from_wire.model_info(self._ask(self._stub.GetModel, pb.GetModelRequest(), timeout))

    def load(self, *, timeout: float | None = None) -> Load:
        """How busy the server is now."""
        return from_wire.load(self._ask(self._stub.GetLoad, pb.GetLoadRequest(), timeout))

    def health(self, service: str = "", *, timeout: float | None = None) -> Health:
        """Whether the server serves: "" asks for all of it, "liveness" for whether it makes progress. Not retried."""
        request = health_pb2.HealthCheckRequest(service=service)
        return from_wire.health(self._answer(self._health.Check, request, Attempts(NO_RETRY, timeout)))

    def _completions(self, request: pb.CompleteRequest, expected: int, timeout: float | None) -> tuple[Completion, ...]:
        attempts = Attempts(self._retry, timeout, refusals_only=True)
        return from_wire.completions(self._answer(self._stub.Complete, request, attempts), expected)

    def _ask(self, method: "grpc.UnaryUnaryMultiCallable[Q, P]", request: Q, timeout: float | None) -> P:
        """For what costs the server little."""
        return self._answer(method, request, Attempts(self._retry, timeout))

    def _answer(self, method: "grpc.UnaryUnaryMultiCallable[Q, P]", request: Q, attempts: Attempts) -> P:
        while True:
            try:
                with self._unless_closed():
                    return method(request, timeout=attempts.begin(), metadata=self._metadata)
            except grpc.RpcError as error:
                pause = attempts.pause_after(error_from(error))
            time.sleep(pause)

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Asks afterwards, since another thread may close the client at any moment."""
        try:
            yield
        except ValueError as error:  # what gRPC raises for a closed channel, among other things
            if self._is_closed:
                raise ClientClosed from error
            raise

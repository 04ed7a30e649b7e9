"""A real server on a real socket, over the fake model, and what its clients see."""

import asyncio
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

from server.engine.engine import Engine, EngineSettings, Lifecycle, Served
from server.engine.tokenizer import Tokenizer
from server.observe.call_record import CallObserver
from server.rpc.server import Server, ServerSettings
from server.rpc.statuses import DETAILS_KEY
from tests.server.fakes import FakeConstraints, FakeModel, FakeTokenizer

ENGINE = EngineSettings(max_slots=4, max_waiting=8, max_step_tokens=16, max_unread_tokens=1000, stuck_after=60)
SERVER = ServerSettings(
    host="127.0.0.1",
    port=0,
    max_message_bytes=64 << 10,
    max_open_requests=100,
    max_open_bytes=1 << 20,
    log_prompts=False,
)
PATIENCE = 30.0
"""Seconds a test waits for what must happen; they pass only where it fails."""

Detail = TypeVar("Detail", bound=Message)


class Gate:
    """Holds up what passes it while it is closed, such as the fake model's steps."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()

    def close(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def __call__(self, _: object = None) -> None:
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(PATIENCE)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def generate_request(prompt: str = "hello", max_new_tokens: int = 8, request_id: str = "") -> pb.GenerateRequest:
    stopping = pb.StoppingCriteria(max_new_tokens=max_new_tokens, ignore_eos=True)
    return pb.GenerateRequest(prompt=prompt, stopping=stopping, request_id=request_id)


GenerateCall: TypeAlias = "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"


@dataclass(frozen=True)
class Refusal:
    """An error as its client sees it."""

    code: grpc.StatusCode
    message: str
    trailing: dict[str, str | bytes]
    details: status_pb2.Status

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> "Refusal":
        trailing = dict(error.trailing_metadata() or ())
        packed = trailing[DETAILS_KEY]
        assert isinstance(packed, bytes)
        details = status_pb2.Status.FromString(packed)
        assert details.code == error.code().value[0]
        assert details.message == error.details()
        return cls(error.code(), details.message, trailing, details)

    @property
    def reason(self) -> str:
        info = self.detail(error_details_pb2.ErrorInfo)
        assert info is not None
        assert info.domain == "treadle"
        return info.reason

    @property
    def field(self) -> str:
        """Of the one field that is to blame."""
        bad_request = self.detail(error_details_pb2.BadRequest)
        assert bad_request is not None
        (violation,) = bad_request.field_violations
        return violation.field

    @property
    def retry_after(self) -> int | None:
        retry = self.detail(error_details_pb2.RetryInfo)
        return None if retry is None else retry.retry_delay.seconds

    def detail(self, kind: type[Detail]) -> Detail | None:
        for packed in self.details.details:
            detail = kind()
            if packed.Unpack(detail):
                return detail
        return None


@dataclass
class Serving:
    """A server that runs, and a client of it."""

    model: FakeModel = field(default_factory=FakeModel)
    tokenizer: Tokenizer = field(default_factory=FakeTokenizer)
    constraints: FakeConstraints = field(default_factory=FakeConstraints)
    engine_settings: EngineSettings = ENGINE
    server_settings: ServerSettings = SERVER
    loading: Gate = field(default_factory=Gate)
    steps: Gate = field(default_factory=Gate)

    async def start(self) -> "Serving":
        self.model.before_step = self.steps
        self.engine = Engine(self.load, self.engine_settings)
        self.server = Server(self.engine, self.server_settings, self.observers())
        self.port = await self.server.start()
        self.engine.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        self.stub = GenerationServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        return self

    def observers(self) -> Sequence[CallObserver]:
        return ()

    async def ready(self) -> "Serving":
        assert await self.engine.lifecycle_after(Lifecycle.LOADING) is Lifecycle.READY
        return self

    async def close(self) -> None:
        self.loading.open()
        self.steps.open()
        await self.channel.close()
        await self.engine.stop()
        await self.server.stop()

    async def events(self, request: pb.GenerateRequest) -> list[pb.GenerateResponse]:
        return [event async for event in self.stub.Generate(request)]

    async def refusal(self, request: pb.GenerateRequest, **options: object) -> Refusal:
        return await refusal(self.stub.Generate(request, **options))  # type: ignore[arg-type]

    async def complete(self, request: pb.GenerateRequest, inputs: Sequence[pb.Input] = ()) -> pb.CompleteResponse:
        return await self.stub.Complete(pb.CompleteRequest(generate=request, inputs=inputs))

    async def health_of(self, service: str) -> str:
        answer = await self.health.Check(health_pb2.HealthCheckRequest(service=service))
        name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        return name

    async def hold_steps(self, request: pb.GenerateRequest) -> GenerateCall:
        """Starts a generation and holds its first step."""
        self.steps.close()
        call = self.stub.Generate(request)
        await asyncio.to_thread(self.steps.reached.wait, PATIENCE)
        return call

    def is_empty(self) -> bool:
        """Nothing is left of any request."""
        load = self.engine.load()
        return (load.running, load.waiting, load.kv_blocks_used) == (0, 0, 0)

    def load(self) -> Served:
        self.loading()
        return Served(self.model, self.tokenizer, self.constraints)


Start: TypeAlias = Callable[[Serving], Awaitable[Serving]]


async def refusal_of_answer(call: Awaitable[Message]) -> Refusal:
    """Of a call that is answered once."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return Refusal.of(error)
    raise AssertionError("the call ended OK")


def by_index(events: Iterable[pb.GenerateResponse]) -> dict[int, list[pb.GenerateResponse]]:
    """The events of each generation, in order."""
    generations: dict[int, list[pb.GenerateResponse]] = {}
    for event in events:
        generations.setdefault(event.index, []).append(event)
    return generations


def kinds(events: Iterable[pb.GenerateResponse]) -> list[str | None]:
    return [event.WhichOneof("event") for event in events]


def token_ids(events: Iterable[pb.GenerateResponse]) -> list[int]:
    return [token_id for event in events for token_id in event.tokens.token_ids]


def text(events: Iterable[pb.GenerateResponse]) -> str:
    return "".join(event.tokens.text for event in events)


async def refusal(call: AsyncIterable[pb.GenerateResponse]) -> Refusal:
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return Refusal.of(error)
    raise AssertionError("the call ended OK")

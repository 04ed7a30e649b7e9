"""A server that does what a test's script says, and remembers what it was asked."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server

PATIENCE = 30.0
"""Seconds a test waits for what must happen; they pass only where it fails."""

Context: TypeAlias = grpc.ServicerContext
Script: TypeAlias = Callable[[Context], Iterator[pb.GenerateResponse]]

STARTED = pb.GenerateResponse(started=pb.Started(request_id="r1", seed=7, prompt_token_count=3, cached_token_count=1))
RESULT = pb.GenerateResponse(
    result=pb.Result(
        finish_reason=pb.FINISH_REASON_MAX_NEW_TOKENS, usage=pb.Usage(prompt_tokens=3, completion_tokens=2)
    )
)


def tokens(text: str) -> pb.GenerateResponse:
    return pb.GenerateResponse(tokens=pb.TokenChunk(token_ids=[len(text)], text=text))


def of(index: int, event: pb.GenerateResponse) -> pb.GenerateResponse:
    """The same event, of this generation."""
    copy = pb.GenerateResponse()
    copy.CopyFrom(event)
    copy.index = index
    return copy


def says(*events: pb.GenerateResponse) -> Script:
    """Ends OK after these events."""
    return lambda context: iter(events)


def answers(*pieces: str) -> Script:
    return says(STARTED, *map(tokens, pieces), RESULT)


def fails(
    code: grpc.StatusCode,
    message: str = "no",
    *details: Message,
    after: tuple[pb.GenerateResponse, ...] = (),
) -> Script:
    def script(context: Context) -> Iterator[pb.GenerateResponse]:
        yield from after
        abort(context, code, message, *details)

    return script


def abort(context: Context, code: grpc.StatusCode, message: str, *details: Message) -> NoReturn:
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=message)
    for detail in details:
        status.details.add().Pack(detail)
    context.set_trailing_metadata((("x-request-id", "r1"), ("grpc-status-details-bin", status.SerializeToString())))
    context.abort(code, message)


REFUSES = fails(grpc.StatusCode.UNAVAILABLE, "not now")


def endless(context: Context) -> Iterator[pb.GenerateResponse]:
    yield STARTED
    while context.is_active():
        yield tokens("again ")
        threading.Event().wait(0.002)


def silent(context: Context) -> Iterator[pb.GenerateResponse]:
    """Nothing at all until the client leaves."""
    left = threading.Event()
    if context.add_callback(left.set):
        left.wait(PATIENCE)
    return iter(())


def reason(name: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(domain="treadle", reason=name)


@dataclass
class Asked:
    """One call as the server saw it."""

    request: Any
    metadata: dict[str, str | bytes]
    time_remaining: float | None
    ended: threading.Event = field(default_factory=threading.Event)
    """Set once the call is over for whatever reason, the client's leaving among them."""


class ScriptedServicer(GenerationServiceServicer):
    """Each call plays the next script; the last one stays. A completion is made of its results, unless one is given."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.completions: list[pb.Completion] | None = None
        self.model = pb.GetModelResponse(id="scripted")
        self.scripts: deque[Script] = deque([answers("Hello", " world")])

    def play(self, *scripts: Script) -> None:
        self.scripts = deque(scripts)

    def _next(self, request: object, context: Context) -> Iterator[pb.GenerateResponse]:
        remaining = context.time_remaining()
        asked = Asked(request, dict(context.invocation_metadata()), remaining)
        context.add_callback(asked.ended.set)
        self.asked.append(asked)
        script = self.scripts.popleft() if len(self.scripts) > 1 else self.scripts[0]
        return script(context)

    def Generate(self, request: pb.GenerateRequest, context: Context) -> Iterator[pb.GenerateResponse]:  # noqa: N802
        yield from self._next(request, context)

    def Complete(self, request: pb.CompleteRequest, context: Context) -> pb.CompleteResponse:  # noqa: N802
        events = list(self._next(request, context))
        results = [event.result for event in events if event.HasField("result")]
        text = "".join(event.tokens.text for event in events)
        completions = self.completions
        if completions is None:
            completions = [pb.Completion(text=text, token_ids=[1, 2], result=result, seed=7) for result in results]
        return pb.CompleteResponse(request_id="r1", seed=7, completions=completions)

    def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:  # noqa: N802
        self.asked.append(Asked(request, dict(context.invocation_metadata()), context.time_remaining()))
        return pb.TokenizeResponse(token_ids=[1], tokens=["h"])

    def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:  # noqa: N802
        return pb.DetokenizeResponse(text="h")

    def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802
        return self.model

    def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:  # noqa: N802
        return pb.GetLoadResponse(running=1)


@dataclass
class ScriptedServer:
    """A ScriptedServicer on a port of its own."""

    servicer: ScriptedServicer
    server: grpc.Server
    address: str

    @classmethod
    def start(cls) -> "ScriptedServer":
        server = grpc.server(ThreadPoolExecutor(8))
        servicer = ScriptedServicer()
        add_GenerationServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return cls(servicer, server, f"127.0.0.1:{port}")

    @property
    def asked(self) -> list[Asked]:
        return self.servicer.asked

    def play(self, *scripts: Script) -> None:
        self.servicer.play(*scripts)

    def wait_for_call(self) -> Asked:
        deadline = time.monotonic() + PATIENCE
        while not self.asked:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.asked[0]

    def stop(self) -> None:
        self.server.stop(None).wait(PATIENCE)

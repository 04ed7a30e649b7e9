"""Open calls: how many there may be, and the one way in which each of them ends.

Every method's body runs inside `OpenCalls.open`. Whatever it raises becomes a status here and nowhere else, every end
carries the request id in its trailing metadata, and every end is one line in the log.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import grpc
import structlog
from treadle.v1 import generation_pb2 as pb

from server.engine.errors import InvalidArgument
from server.engine.events import PromptLogprobs, Result, Started, Tokens
from server.engine.request import Request
from server.observe.call_record import CallObserver, CallRecord, GenerationFacts, Operation
from server.rpc.errors import TooManyOpenBytes, TooManyOpenCalls
from server.rpc.request_id import METADATA_KEY, check_request_id, new_request_id
from server.rpc.security.caller import Caller, caller_of
from server.rpc.security.limits import Account, Accounts
from server.rpc.statuses import DETAILS_KEY, UNEXPECTED, answer_to, status_of

log = structlog.stdlib.get_logger("treadle.rpc")

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
SERVICE = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name
TRACE_HEADERS = frozenset({"traceparent", "tracestate"})
"""Of W3C Trace Context, https://www.w3.org/TR/trace-context/."""
STATUS_TIME = 1.0
"""Seconds for a status to be taken over by the connection."""

TrailingMetadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


@dataclass(slots=True)
class Call:
    """One call while it is open, and what its line in the log will say."""

    service: str
    rpc: str
    peer: str
    caller: Caller | None = None
    """None where nobody has to prove who they are."""
    account: Account = field(default_factory=Account)
    """The caller's."""
    trace_context: Mapping[str, str] = field(default_factory=dict)
    request_id: str = field(default_factory=new_request_id)
    is_id_claimed: bool = False
    """Whether the client claims the id for this call alone: by the request's own field, not by metadata, which an
    application hands on to all the calls it makes for one of its own."""
    arrived_at: float = field(default_factory=time.monotonic)
    """On time.monotonic's clock."""
    status: str = "OK"
    reason: str | None = None
    """Of the status, where it is an error of ours."""
    bad_field: str | None = None
    message_bytes: int = 0
    """Of the request message, which lives as long as the call."""
    started: list[Started] = field(default_factory=list)
    """Of its generations."""
    asked: GenerationFacts | None = None
    results: dict[int, Result] = field(default_factory=dict)
    """By the index of the generation, as are `texts`."""
    token_count: int = 0
    prompt: str | None = None
    """Only where prompts are to be logged; as are `texts`."""
    texts: dict[int, str] | None = None

    def name(self, request_id: str) -> None:
        """Takes the request's own id where it has one. Raises InvalidArgument where that could not be echoed."""
        if request_id:
            self.request_id = check_request_id("request_id", request_id)
            self.is_id_claimed = True

    def ask(self, request: Request, model: str) -> None:
        """Notes what it asks for, of the first of its generations."""
        operation: Operation = "chat" if request.prompt_field == "chat" else "text_completion"
        self.asked = GenerationFacts(operation, model, request.sampling, request.stopping.max_new_tokens)

    def hear(self, index: int, event: Started | PromptLogprobs | Tokens | Result) -> None:
        match event:
            case Started():
                self.started.append(event)
                self.account.start()
            case Tokens():
                self.token_count += len(event.token_ids)
                self.account.spend(len(event.token_ids))
                if self.texts is not None:
                    self.texts[index] = self.texts.get(index, "") + event.text
            case Result():
                self.results[index] = event

    def log_end(self) -> None:
        facts = {
            "request_id": self.request_id,
            "service": None if self.service == SERVICE else self.service,
            "rpc": self.rpc,
            "peer": self.peer,
            "identity": None if self.caller is None else self.caller.identity,
            "status": self.status,
            "reason": self.reason,
            "field": self.bad_field,
            "total": round(time.monotonic() - self.arrived_at, 4),
            **self._generation_facts(),
            "prompt": self.prompt,
            "text": None if self.texts is None else "\n".join(self.texts[index] for index in sorted(self.texts)),
        }
        log.info("request", **{name: fact for name, fact in facts.items() if fact is not None})

    def record(self) -> CallRecord:
        return CallRecord(
            service=self.service,
            rpc=self.rpc,
            request_id=self.request_id,
            status=self.status,
            reason=self.reason,
            arrived_at=self.arrived_at,
            ended_at=time.monotonic(),
            trace_context=self.trace_context,
            asked=self.asked,
            results=self.results,
            prompt_tokens=sum(started.prompt_token_count for started in self.started),
            generated_tokens=self.token_count,
            cached_tokens=sum(started.cached_token_count for started in self.started),
        )

    def _generation_facts(self) -> dict[str, object]:
        """Sums over the generations, the longest time in the queue, and the shortest to a first token."""
        if not self.started:
            return {}
        facts: dict[str, object] = {
            "generations": len(self.started) if len(self.started) > 1 else None,
            "prompt_tokens": sum(started.prompt_token_count for started in self.started),
            "cached_tokens": sum(started.cached_token_count for started in self.started),
            "completion_tokens": self.token_count,
        }
        if self.results:
            timings = [result.timing for result in self.results.values()]
            first = [t.time_to_first_token for t in timings if t.time_to_first_token is not None]
            facts["queued"] = round(max(timing.queued for timing in timings), 4)
            facts["time_to_first_token"] = round(min(first), 4) if first else None
            facts["finish"] = " ".join(dict.fromkeys(result.finish.reason.name for result in self.results.values()))
        return facts


class OpenCalls:
    """The calls that are open, at most `limit`, with request messages of at most `byte_limit` bytes in all.

    A call is open until its status has left for the client. The observers are told of each when its body has ended.
    """

    def __init__(self, limit: int, byte_limit: int, accounts: Accounts, observers: Sequence[CallObserver] = ()) -> None:
        self.limit, self.byte_limit = limit, byte_limit
        self._accounts, self._observers = accounts, observers
        self.count = 0
        self.byte_count = 0
        self._ended = asyncio.Event()

    async def idle(self) -> None:
        """Waits until no call is open."""
        while self.count:
            self._ended.clear()
            await self._ended.wait()

    @asynccontextmanager
    async def open(
        self, rpc: str, context: Context, refusal: Exception | None = None, service: str = SERVICE
    ) -> AsyncIterator[Call]:
        """With a `refusal` the call ends with it, before it is counted."""
        call = Call(service, rpc, context.peer(), caller_of(context), trace_context=_trace_context(context))
        try:
            if refusal is not None:
                with contextlib.suppress(InvalidArgument):  # who is refused hears that first
                    call.request_id = _id_in_metadata(context) or call.request_id
                raise refusal
            call.request_id = _id_in_metadata(context) or call.request_id
            self._count_in(call, context)
            yield call
        except asyncio.CancelledError:
            deadline_passed = context.time_remaining() == 0
            call.status = "DEADLINE_EXCEEDED" if deadline_passed else "CANCELLED"
            raise
        except grpc.aio.BaseError:  # the connection broke under a write, or the server was stopped
            call.status = "CANCELLED"
            raise
        except Exception as error:
            await _end_with_status(call, context, error)
        else:
            context.set_trailing_metadata(_trailing_metadata(call))
        finally:
            call.log_end()
            for observer in self._observers:
                observer.call_ended(call.record())

    def count_message(self, call: Call, size: int) -> None:
        """Raises TooManyOpenBytes where there is no room for the call's message of `size` bytes."""
        if self.byte_count + size > self.byte_limit:
            limit = f"{self.byte_limit} bytes of request messages, the most this server takes"
            raise TooManyOpenBytes(f"{size} bytes are too many beside the open calls: {limit}")
        call.message_bytes = size
        self.byte_count += size

    def _count_in(self, call: Call, context: Context) -> None:
        if self.count >= self.limit:
            raise TooManyOpenCalls(f"{self.limit} calls are open, the most this server takes")
        account = self._accounts.of(call.caller)
        account.open()
        call.account = account
        self.count += 1
        context.add_done_callback(partial(self._count_out, call))  # type: ignore[arg-type]  # the stub's is no Protocol

    def _count_out(self, call: Call, _: object) -> None:
        self.count -= 1
        call.account.close()
        self.byte_count -= call.message_bytes
        self._ended.set()


async def _end_with_status(call: Call, context: Context, error: Exception) -> None:
    answer = answer_to(error)
    if answer is UNEXPECTED:
        log.error("a call failed by a mistake in the server", request_id=call.request_id, exc_info=error)
    call.status, call.reason = answer.code.name, answer.reason
    call.bad_field = error.field if isinstance(error, InvalidArgument) else None
    status = status_of(error)
    details = (DETAILS_KEY, status.SerializeToString())
    # A client that reads nothing would hold the call up for ever; the status is on its way all the same.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STATUS_TIME):
            await context.abort(answer.code, status.message, (*_trailing_metadata(call), details))


def _trailing_metadata(call: Call) -> TrailingMetadata:
    return ((METADATA_KEY, call.request_id),)


def _id_in_metadata(context: Context) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == METADATA_KEY and value:
            return check_request_id(f"metadata {METADATA_KEY}", str(value))
    return None


def _trace_context(context: Context) -> Mapping[str, str]:
    return {key: str(value) for key, value in context.invocation_metadata() or () if key in TRACE_HEADERS}

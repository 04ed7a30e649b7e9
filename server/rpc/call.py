"""Open calls: how many there may be, and the one way in which each of them ends.

Every method's body runs inside `OpenCalls.open`. Whatever it raises becomes a status here and nowhere else, every end
carries the request id in its trailing metadata, and every end is one line in the log.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import structlog

from server.engine.errors import InvalidArgument
from server.engine.events import Result, Started, Tokens
from server.rpc.errors import TooManyOpenCalls
from server.rpc.request_id import METADATA_KEY, check_request_id, new_request_id
from server.rpc.statuses import DETAILS_KEY, UNEXPECTED, answer_to, status_of

log = structlog.stdlib.get_logger("treadle.rpc")

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
TrailingMetadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


@dataclass(slots=True)
class Call:
    """One call while it is open, and what its line in the log will say."""

    rpc: str
    peer: str
    request_id: str = field(default_factory=new_request_id)
    arrived_at: float = field(default_factory=time.monotonic)
    """On time.monotonic's clock."""
    status: str = "OK"
    reason: str | None = None
    """Of the status, where it is an error of ours."""
    bad_field: str | None = None
    started: Started | None = None
    result: Result | None = None
    token_count: int = 0
    prompt: str | None = None
    """Only where prompts are to be logged; as is `text`."""
    text: str | None = None

    def name(self, request_id: str) -> None:
        """Takes the request's own id where it has one. Raises InvalidArgument where that could not be echoed."""
        if request_id:
            self.request_id = check_request_id("request_id", request_id)

    def hear(self, event: Started | Tokens | Result) -> None:
        match event:
            case Started():
                self.started = event
            case Tokens():
                self.token_count += len(event.token_ids)
                if self.text is not None:
                    self.text += event.text
            case Result():
                self.result = event

    def log_end(self) -> None:
        facts = {
            "request_id": self.request_id,
            "rpc": self.rpc,
            "peer": self.peer,
            "status": self.status,
            "reason": self.reason,
            "field": self.bad_field,
            "total": round(time.monotonic() - self.arrived_at, 4),
            **self._generation_facts(),
            "prompt": self.prompt,
            "text": self.text,
        }
        log.info("request", **{name: fact for name, fact in facts.items() if fact is not None})

    def _generation_facts(self) -> dict[str, object]:
        if self.started is None:
            return {}
        facts: dict[str, object] = {
            "prompt_tokens": self.started.prompt_token_count,
            "cached_tokens": self.started.cached_token_count,
            "completion_tokens": self.token_count,
        }
        if self.result is not None:
            timing = self.result.timing
            facts["queued"] = round(timing.queued, 4)
            if timing.time_to_first_token is not None:
                facts["time_to_first_token"] = round(timing.time_to_first_token, 4)
            facts["finish"] = self.result.finish.reason.name
        return facts


class OpenCalls:
    """The calls that are open, at most `limit`. A call is open until its status has left for the client."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._ended = asyncio.Event()

    async def idle(self) -> None:
        """Waits until no call is open."""
        while self.count:
            self._ended.clear()
            await self._ended.wait()

    @asynccontextmanager
    async def open(self, rpc: str, context: Context) -> AsyncIterator[Call]:
        call = Call(rpc, context.peer())
        try:
            call.request_id = _id_in_metadata(context) or call.request_id
            self._count_in(context)
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

    def _count_in(self, context: Context) -> None:
        if self.count >= self.limit:
            raise TooManyOpenCalls(f"{self.limit} calls are open, the most this server takes")
        self.count += 1
        context.add_done_callback(self._count_out)  # type: ignore[arg-type]  # the stub's type is no Protocol

    def _count_out(self, _: Context) -> None:
        self.count -= 1
        self._ended.set()


async def _end_with_status(call: Call, context: Context, error: Exception) -> None:
    answer = answer_to(error)
    if answer is UNEXPECTED:
        log.error("a call failed by a mistake in the server", request_id=call.request_id, exc_info=error)
    call.status, call.reason = answer.code.name, answer.reason
    call.bad_field = error.field if isinstance(error, InvalidArgument) else None
    status = status_of(error)
    details = (DETAILS_KEY, status.SerializeToString())
    await context.abort(answer.code, status.message, (*_trailing_metadata(call), details))


def _trailing_metadata(call: Call) -> TrailingMetadata:
    return ((METADATA_KEY, call.request_id),)


def _id_in_metadata(context: Context) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == METADATA_KEY and value:
            return check_request_id(f"metadata {METADATA_KEY}", str(value))
    return None

"""gRPC statuses to this package's errors.

Details come in the richer error model, https://grpc.io/docs/guides/error/#richer-error-model.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from treadle.errors import (
    Cancelled,
    DeadlineExceeded,
    DuplicateRequestId,
    InvalidRequest,
    MessageTooLarge,
    NotAllowed,
    NotSupported,
    Overloaded,
    PreconditionFailed,
    ServerError,
    SlowReader,
    TreadleError,
    Unavailable,
    Violation,
)
from treadle.from_wire import seconds

DETAILS_KEY = "grpc-status-details-bin"
REQUEST_ID_KEY = "x-request-id"

ERRORS_BY_CODE: dict[grpc.StatusCode, type[TreadleError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.ALREADY_EXISTS: DuplicateRequestId,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.NOT_FOUND: NotSupported,
    grpc.StatusCode.UNIMPLEMENTED: NotSupported,
}
DOMAIN = "treadle"
REFUSALS = frozenset(
    {"NOT_READY", "DRAINING", "QUEUE_FULL", "TOO_MANY_OPEN_CALLS", "TOO_MANY_OPEN_BYTES", "TOO_MANY_WAITING"}
)
"""Reasons of a Treadle server that takes no work now. DRAINING is also that of work that a server which shuts down did
not finish in time, and which is lost."""
NO_CONNECTION = ("failed to connect to all addresses", "errors resolving ", "DNS resolution failed ")
"""How gRPC's message begins where it had no connection to put the call on. A connection that breaks under a call has
other messages. gRPC promises no wording: another one would only mean that such a call is not made again."""
ERRORS_BY_REASON: dict[str, type[TreadleError]] = {"SLOW_READER": SlowReader, "MESSAGE_TOO_LARGE": MessageTooLarge}


@dataclass(frozen=True, slots=True)
class Details:
    """What a status carries beyond its code and message."""

    domain: str | None = None
    """Whose the reason is."""
    reason: str | None = None
    violations: tuple[Violation, ...] = ()
    retry_after: float | None = None


def error_from(call: grpc.RpcError) -> TreadleError:
    # The stubs say objects with two attributes; they are pairs, and grpc.aio's have no attributes.
    metadata = dict(cast(Iterable[tuple[str, str | bytes]], call.trailing_metadata() or ()))
    details = _details(metadata.get(DETAILS_KEY))
    request_id = metadata.get(REQUEST_ID_KEY)
    message = call.details() or call.code().name
    return _error_type(call.code(), message, details.reason)(
        message,
        code=call.code().name,
        reason=details.reason,
        request_id=request_id if isinstance(request_id, str) else None,
        violations=details.violations,
        retry_after=details.retry_after,
        is_refusal=_is_refusal(call.code(), message, details),
    )


def _error_type(code: grpc.StatusCode, message: str, reason: str | None) -> type[TreadleError]:
    if reason in ERRORS_BY_REASON:
        return ERRORS_BY_REASON[reason]
    # gRPC itself refuses a message over either side's limit with this code and no details.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in message:
        return MessageTooLarge
    return ERRORS_BY_CODE.get(code, ServerError)


def _is_refusal(code: grpc.StatusCode, message: str, details: Details) -> bool:
    if details.reason is not None:
        return details.domain == DOMAIN and details.reason in REFUSALS
    return code is grpc.StatusCode.UNAVAILABLE and message.startswith(NO_CONNECTION)


def _details(encoded: str | bytes | None) -> Details:
    if not isinstance(encoded, bytes):
        return Details()
    try:
        return _read(status_pb2.Status.FromString(encoded).details)
    except DecodeError:  # some other server's: its code and message still say what happened
        return Details()


def _read(details: Iterable[Any]) -> Details:
    domain, reason, violations, retry_after = None, None, [], None
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in details:
        if detail.Unpack(info):
            domain, reason = info.domain, info.reason
        elif detail.Unpack(bad_request):
            violations += [Violation(each.field, each.description) for each in bad_request.field_violations]
        elif detail.Unpack(retry):
            retry_after = seconds(retry.retry_delay)
    return Details(domain, reason, tuple(violations), retry_after)

"""What each error is on the wire: one table from its type to a status code, a reason and, where it helps, a delay.

Details follow the richer error model, https://grpc.io/docs/guides/error/#richer-error-model: google.rpc.ErrorInfo on
every error, BadRequest where a field is to blame, RetryInfo where the same call may succeed later.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from server.engine.errors import (
    ChatTemplateMissing,
    ConstraintFailed,
    Draining,
    DuplicateRequestId,
    EngineDied,
    InvalidArgument,
    NotReady,
    QueueFull,
    SlowReader,
    StepFailed,
    TemplateNotAllowed,
)
from server.rpc.errors import (
    EndedWithoutResult,
    ExpiredCredential,
    IdentityTooBusy,
    IdentityTooManyTokens,
    IdentityTooManyWaiting,
    MalformedMessage,
    MessageTooLarge,
    MethodNotAllowed,
    MissingCredential,
    ScopeMissing,
    TooManyOpenBytes,
    TooManyOpenCalls,
    TooManyWaiting,
    WrongCredential,
)

DOMAIN = "treadle"
DETAILS_KEY = "grpc-status-details-bin"

MAX_MESSAGE_BYTES = 512
MAX_VALUE_BYTES = 128
"""A client takes 8 KiB of trailing metadata in all by default, so what a request can make long is cut."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What every error of a type has in common on the wire."""

    code: grpc.StatusCode
    reason: str
    retry_after: int | None = None
    """Seconds after which the same call may succeed, here or on another server."""


ANSWERS: Mapping[type[Exception], Answer] = MappingProxyType(
    {
        InvalidArgument: Answer(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        MalformedMessage: Answer(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE"),
        MessageTooLarge: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE"),
        ChatTemplateMissing: Answer(grpc.StatusCode.FAILED_PRECONDITION, "CHAT_TEMPLATE_MISSING"),
        TemplateNotAllowed: Answer(grpc.StatusCode.PERMISSION_DENIED, "TEMPLATE_NOT_ALLOWED"),
        DuplicateRequestId: Answer(grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID"),
        QueueFull: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after=1),
        TooManyOpenCalls: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_OPEN_CALLS", retry_after=1),
        TooManyOpenBytes: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_OPEN_BYTES", retry_after=1),
        TooManyWaiting: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_WAITING", retry_after=5),
        SlowReader: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER"),
        NotReady: Answer(grpc.StatusCode.UNAVAILABLE, "NOT_READY", retry_after=5),
        Draining: Answer(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_after=1),
        EngineDied: Answer(grpc.StatusCode.UNAVAILABLE, "ENGINE_DIED", retry_after=5),
        StepFailed: Answer(grpc.StatusCode.INTERNAL, "STEP_FAILED"),
        ConstraintFailed: Answer(grpc.StatusCode.INVALID_ARGUMENT, "CONSTRAINT_FAILED"),
        EndedWithoutResult: Answer(grpc.StatusCode.INTERNAL, "ENDED_WITHOUT_RESULT"),
        MissingCredential: Answer(grpc.StatusCode.UNAUTHENTICATED, "MISSING_CREDENTIAL"),
        WrongCredential: Answer(grpc.StatusCode.UNAUTHENTICATED, "WRONG_CREDENTIAL"),
        ExpiredCredential: Answer(grpc.StatusCode.UNAUTHENTICATED, "EXPIRED_CREDENTIAL"),
        ScopeMissing: Answer(grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING"),
        MethodNotAllowed: Answer(grpc.StatusCode.PERMISSION_DENIED, "METHOD_NOT_ALLOWED"),
        IdentityTooBusy: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "IDENTITY_TOO_BUSY", retry_after=1),
        IdentityTooManyWaiting: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "IDENTITY_TOO_MANY_WAITING", retry_after=1),
        IdentityTooManyTokens: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "IDENTITY_TOO_MANY_TOKENS"),
    }
)

UNEXPECTED = Answer(grpc.StatusCode.INTERNAL, "UNEXPECTED")
"""For what no type in the table names: a mistake in the server, whose message is for the log only."""

REASONS = tuple(sorted({answer.reason for answer in (*ANSWERS.values(), UNEXPECTED)}))


def answer_to(error: Exception) -> Answer:
    return ANSWERS.get(type(error), UNEXPECTED)


def status_of(error: Exception) -> status_pb2.Status:
    """The status with its details, small enough for any client's limit on metadata."""
    answer = answer_to(error)
    text = "the server made a mistake; its log says more" if answer is UNEXPECTED else str(error)
    code: int = answer.code.value[0]
    status = status_pb2.Status(code=code, message=_cut(text, MAX_MESSAGE_BYTES))
    for detail in _details(error, answer):
        status.details.add().Pack(detail)
    return status


def _details(error: Exception, answer: Answer) -> Iterator[Message]:
    info = error_details_pb2.ErrorInfo(domain=DOMAIN, reason=answer.reason)
    if isinstance(error, InvalidArgument):
        value, limit = _cut(str(error.value), MAX_VALUE_BYTES), _cut(error.limit, MAX_MESSAGE_BYTES)
        info.metadata.update({"field": error.field, "value": value, "limit": limit})
        bad_request = error_details_pb2.BadRequest()
        bad_request.field_violations.add(field=error.field, description=f"is {value}: {limit}")
        yield bad_request
    retry_after = error.retry_after if isinstance(error, IdentityTooManyTokens) else answer.retry_after
    if retry_after is not None:
        yield error_details_pb2.RetryInfo(retry_delay=Duration(seconds=retry_after))
    yield info


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - 3].decode(errors="ignore") + "..."

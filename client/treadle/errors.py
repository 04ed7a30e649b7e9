"""What can go wrong with a call, as types."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with one field of a request."""

    field: str
    """Its path in the request message, such as "sampling.temperature"."""
    description: str


class TreadleError(Exception):
    """Base of every error of this package; `str()` of it is one readable line.

    `code` is the name of the gRPC status, `reason` the server's machine-readable one (google.rpc.ErrorInfo) where it
    gave one, `request_id` the request's id where it is known. `is_refusal` says that there is no work for it: the
    server refused the call before it began or gave it up as it shut down, or could not be reached at all.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        reason: str | None = None,
        request_id: str | None = None,
        violations: tuple[Violation, ...] = (),
        retry_after: float | None = None,
        is_refusal: bool = False,
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.reason, self.request_id = message, code, reason, request_id
        self.is_refusal = is_refusal
        self.violations = violations
        """The fields to blame; empty unless this is an InvalidRequest."""
        self.retry_after = retry_after
        """Seconds after which the server says the same call may succeed."""


class InvalidRequest(TreadleError):
    """A field of the request has a value it must not have: see `violations`."""


class MessageTooLarge(InvalidRequest):
    """The request or the answer has more bytes than the limit."""


class PreconditionFailed(TreadleError):
    """This server cannot do this for any value: a chat, say, with a model that has no chat template."""


class DuplicateRequestId(TreadleError):
    """A request with this request_id is in flight."""


class Overloaded(TreadleError):
    """All slots and waiting places are taken: see `retry_after`."""


class SlowReader(TreadleError):
    """This client left more tokens unread than the server keeps for it."""


class Unavailable(TreadleError):
    """The server cannot be reached, is not ready, or is shutting down."""


class DeadlineExceeded(TreadleError):
    """The call's timeout has passed."""


class Cancelled(TreadleError):
    """The call was cancelled, here or on its way."""


class ClientClosed(TreadleError):
    """The client was closed before the call."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


class NotAllowed(TreadleError):
    """The credentials are missing, wrong or not enough."""


class NotSupported(TreadleError):
    """The server does not know this method or service."""


class ServerError(TreadleError):
    """The server failed."""


class IncompleteStream(TreadleError):
    """The answer ended OK, but without its result: something between here and the server cut it short."""

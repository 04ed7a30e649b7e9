"""What the command's exit status says."""

from enum import IntEnum

from treadle.errors import (
    DeadlineExceeded,
    DuplicateRequestId,
    InvalidRequest,
    NotAllowed,
    NotSupported,
    Overloaded,
    PreconditionFailed,
    TreadleError,
    Unavailable,
)


class ExitStatus(IntEnum):
    """0 is success; 130 and 141 are what a shell gives for SIGINT and SIGPIPE."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INVALID_REQUEST = 3
    UNAVAILABLE = 4
    OVERLOADED = 5
    DEADLINE_EXCEEDED = 6
    NOT_ALLOWED = 7
    INTERRUPTED = 130
    BROKEN_PIPE = 141

    @classmethod
    def of(cls, error: TreadleError) -> "ExitStatus":
        match error:
            case InvalidRequest() | PreconditionFailed() | DuplicateRequestId() | NotSupported():
                return cls.INVALID_REQUEST
            case Unavailable():
                return cls.UNAVAILABLE
            case Overloaded():
                return cls.OVERLOADED
            case DeadlineExceeded():
                return cls.DEADLINE_EXCEEDED
            case NotAllowed():
                return cls.NOT_ALLOWED
            case _:
                return cls.FAILED


EXPLANATION = """\
exit status:
  0    done
  1    the server failed, or ended the work early
  2    wrong usage
  3    the server refuses the request as it is
  4    the server cannot be reached, is not ready or is shutting down
  5    the server has too much to do
  6    --timeout has passed
  7    the credentials are missing or not enough
  130  interrupted by Ctrl-C
  141  the reader of the output has left
"""

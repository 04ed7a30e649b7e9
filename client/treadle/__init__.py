"""Client for Treadle, a text-generation server.

with treadle.Client("127.0.0.1:50051") as client:
    for piece in client.generate("Once upon a time", max_new_tokens=32).text():
        print(piece, end="", flush=True)
"""

from treadle.aio import AsyncClient
from treadle.aio_stream import AsyncGenerationStream
from treadle.chat import ChatMessage
from treadle.client import Client
from treadle.connection import TLS
from treadle.errors import (
    Cancelled,
    DeadlineExceeded,
    DuplicateRequestId,
    IncompleteStream,
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
from treadle.events import Completion, Event, FinishReason, Result, Started, Timing, Tokens, Usage
from treadle.requests import GenerateOptions
from treadle.retry import RetryPolicy
from treadle.server_info import Defaults, Health, Limits, Load, ModelInfo, SpecialTokens
from treadle.stream import GenerationStream
from treadle.tokenization import Tokenization
from treadle.version import __version__

__all__ = [
    "TLS",
    "AsyncClient",
    "AsyncGenerationStream",
    "Cancelled",
    "ChatMessage",
    "Client",
    "Completion",
    "DeadlineExceeded",
    "Defaults",
    "DuplicateRequestId",
    "Event",
    "FinishReason",
    "GenerateOptions",
    "GenerationStream",
    "Health",
    "IncompleteStream",
    "InvalidRequest",
    "Limits",
    "Load",
    "MessageTooLarge",
    "ModelInfo",
    "NotAllowed",
    "NotSupported",
    "Overloaded",
    "PreconditionFailed",
    "Result",
    "RetryPolicy",
    "ServerError",
    "SlowReader",
    "SpecialTokens",
    "Started",
    "Timing",
    "Tokenization",
    "Tokens",
    "TreadleError",
    "Unavailable",
    "Usage",
    "Violation",
    "__version__",
]

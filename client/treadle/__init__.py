"""Client for Treadle, a text-generation server.

with treadle.Client("127.0.0.1:50051") as client:
    for piece in client.generate("Once upon a time", max_new_tokens=32).text():
        print(piece, end="", flush=True)
"""

from treadle.aio import AsyncClient
from treadle.aio_stream import AsyncGenerationStream
from treadle.chat import Chat, ChatMessage, Tool, ToolCall
from treadle.client import Client
from treadle.connection import TLS
from treadle.constraint import Choice, Constraint, Grammar, JsonObject, JsonSchema, Regex
from treadle.errors import (
    Cancelled,
    ClientClosed,
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
from treadle.events import (
    Alternative,
    Completion,
    Content,
    Event,
    FinishReason,
    Prompt,
    Reasoning,
    Result,
    Started,
    Timing,
    TokenLogprob,
    Tokens,
    ToolCallPart,
    Usage,
)
from treadle.requests import CompleteOptions, GenerateOptions, Input, LogprobsOf, TokenizeOptions, ToolCallFormat
from treadle.retry import RetryPolicy
from treadle.server_info import Capabilities, Defaults, Health, Limits, Load, ModelInfo, SpecialTokens
from treadle.stream import GenerationStream
from treadle.tokenization import Tokenization
from treadle.version import __version__

__all__ = [
    "TLS",
    "Alternative",
    "AsyncClient",
    "AsyncGenerationStream",
    "Cancelled",
    "Capabilities",
    "Chat",
    "ChatMessage",
    "Choice",
    "Client",
    "ClientClosed",
    "CompleteOptions",
    "Completion",
    "Constraint",
    "Content",
    "DeadlineExceeded",
    "Defaults",
    "DuplicateRequestId",
    "Event",
    "FinishReason",
    "GenerateOptions",
    "GenerationStream",
    "Grammar",
    "Health",
    "IncompleteStream",
    "Input",
    "InvalidRequest",
    "JsonObject",
    "JsonSchema",
    "Limits",
    "Load",
    "LogprobsOf",
    "MessageTooLarge",
    "ModelInfo",
    "NotAllowed",
    "NotSupported",
    "Overloaded",
    "PreconditionFailed",
    "Prompt",
    "Reasoning",
    "Regex",
    "Result",
    "RetryPolicy",
    "ServerError",
    "SlowReader",
    "SpecialTokens",
    "Started",
    "Timing",
    "TokenLogprob",
    "Tokenization",
    "TokenizeOptions",
    "Tokens",
    "Tool",
    "ToolCall",
    "ToolCallFormat",
    "ToolCallPart",
    "TreadleError",
    "Unavailable",
    "Usage",
    "Violation",
    "__version__",
]

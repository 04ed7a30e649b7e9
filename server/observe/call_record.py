"""The CallRecord: what an ended call tells those who count and trace. Prompts and generated text are not in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from server.engine.events import Result
from server.engine.sampling import Sampling

Operation: TypeAlias = Literal["chat", "text_completion"]
"""As OpenTelemetry's GenAI conventions name it."""


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """What a call asked to be generated."""

    operation: Operation
    model: str
    sampling: Sampling
    """Of the first generation."""
    max_new_tokens: int | None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call, over. Times are on time.monotonic's clock."""

    service: str
    rpc: str
    request_id: str
    status: str
    """The name of a gRPC status code."""
    reason: str | None
    """Of the status, where the server refused or failed."""
    arrived_at: float
    ended_at: float
    trace_context: Mapping[str, str]
    """The W3C headers `traceparent` and `tracestate`, as far as the client sent them."""
    asked: GenerationFacts | None
    """None where the call asks for no generation, or could not be read."""
    results: Mapping[int, Result]
    """Of the generations that came to their end, by index."""
    prompt_tokens: int
    generated_tokens: int
    """Those of generations that were broken off included."""
    cached_tokens: int


class CallObserver(Protocol):
    """Hears of each call once, on the event loop, at its end. Must not raise, nor take long."""

    def call_ended(self, record: CallRecord) -> None: ...

"""Tracing: a span for each call, by OpenTelemetry, under the client's own span where it sends one.

Spans are made when the call has ended, of times that are known by then: nothing happens per token. By the conventions
for gRPC, https://opentelemetry.io/docs/specs/semconv/rpc/grpc/, with attributes of those for generative AI,
https://github.com/open-telemetry/semantic-conventions-genai. Prompts and generated text are never in them.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from server.engine.events import Result
from server.observe.call_record import CallRecord, GenerationFacts
from server.observe.metrics import PROVIDER

SERVER_ERRORS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""Statuses that are errors of a server span; the others are its clients' doing."""
MAX_TRACED_GENERATIONS = 8
"""Generations of one call that get spans of their own; a call may have over a hundred."""
CLOSING_TIME = 2.0
"""Seconds the last spans get to leave."""

Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a generation; times are on time.monotonic's clock."""

    name: str
    began_at: float
    ended_at: float


class Tracing:
    """Spans leave on a thread of their own, in batches; when they cannot, the oldest of two thousand are dropped."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("treadle", version("treadle"))

    def call_ended(self, record: CallRecord) -> None:
        clock_offset = time.time() - time.monotonic()

        def at(moment: float) -> int:
            return int((moment + clock_offset) * 1e9)

        span = self._tracer.start_span(
            f"{record.service}/{record.rpc}",
            context=TraceContextTextMapPropagator().extract(record.trace_context, context=Context()),
            kind=SpanKind.SERVER,
            attributes=_call_attributes(record),
            start_time=at(record.arrived_at),
        )
        within = set_span_in_context(span, Context())
        for index, result in sorted(record.results.items())[:MAX_TRACED_GENERATIONS]:
            for phase in _phases(result, record.arrived_at):
                about = {"treadle.generation.index": index}
                child = self._tracer.start_span(phase.name, within, attributes=about, start_time=at(phase.began_at))
                child.end(at(phase.ended_at))
        _set_status(span, record)
        span.end(at(record.ended_at))

    async def close(self) -> None:
        """Sends what is left, as far as CLOSING_TIME allows."""
        # A daemon of its own: a thread of the event loop's would hold up the end of the process.
        closing = Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSING_TIME)


def tracing_to(endpoint: str) -> Tracing:
    """To an OTLP collector, by gRPC; OTEL_EXPORTER_OTLP_* and OTEL_TRACES_SAMPLER* are heeded."""
    return Tracing(OTLPSpanExporter(endpoint=endpoint))


def _resource() -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before our own."""
    own = {"service.name": "treadle", "service.version": version("treadle")}
    return Resource.create(own).merge(OTELResourceDetector().detect())


def _phases(result: Result, arrived_at: float) -> Iterator[Phase]:
    timing = result.timing
    admitted_at, ended_at = arrived_at + timing.queued, arrived_at + timing.total
    yield Phase("queue", arrived_at, admitted_at)
    if timing.time_to_first_token is None:
        yield Phase("prefill", admitted_at, ended_at)
    else:
        first_token_at = arrived_at + timing.time_to_first_token
        yield Phase("prefill", admitted_at, first_token_at)
        yield Phase("decode", first_token_at, ended_at)


def _call_attributes(record: CallRecord) -> Attributes:
    attributes: dict[str, AttributeValue] = {
        "rpc.system.name": "grpc",
        "rpc.method": f"{record.service}/{record.rpc}",
        "rpc.response.status_code": record.status,
        "treadle.request.id": record.request_id,
    }
    if record.asked is not None:
        attributes |= _asked_attributes(record.asked)
        attributes |= {
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.generated_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        }
    if record.results:
        reasons = [result.finish.reason.name for _, result in sorted(record.results.items())]
        attributes["gen_ai.response.finish_reasons"] = reasons
        first = [result.timing.time_to_first_token for result in record.results.values()]
        attributes["gen_ai.response.time_to_first_chunk"] = min((t for t in first if t is not None), default=0.0)
    return attributes


def _asked_attributes(asked: GenerationFacts) -> Attributes:
    sampling = asked.sampling
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": asked.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": asked.model,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    if sampling.seed < 1 << 63:  # an attribute's integer is signed
        attributes["gen_ai.request.seed"] = sampling.seed
    if asked.max_new_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = asked.max_new_tokens
    return attributes


def _set_status(span: Span, record: CallRecord) -> None:
    if record.status == "OK":
        return
    span.set_attribute("error.type", record.reason or record.status)
    if record.status in SERVER_ERRORS:
        span.set_status(Status(StatusCode.ERROR, record.reason))

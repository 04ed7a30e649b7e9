import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest
from treadle.v1 import generation_pb2 as pb

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from server.observe.call_record import CallObserver
from server.observe.tracing import MAX_TRACED_GENERATIONS, Tracing, tracing_to
from tests.server.rpc.serving import Serving, Start, eventually, generate_request

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced(Serving):
    """A Serving whose calls are traced."""

    exporter: SpanExporter
    tracing: Tracing

    def observers(self) -> Sequence[CallObserver]:
        self.exporter = self.new_exporter()
        self.tracing = Tracing(self.exporter)
        return (self.tracing,)

    def new_exporter(self) -> SpanExporter:
        return InMemorySpanExporter()

    async def generate_under(self, **trace_context: str) -> None:
        call = self.stub.Generate(generate_request(), metadata=tuple(trace_context.items()))
        assert [event async for event in call]

    async def spans(self) -> list[ReadableSpan]:
        """All there are, once the calls have ended and tracing has closed."""
        await self.server.idle()
        await self.tracing.close()
        assert isinstance(self.exporter, InMemorySpanExporter)
        return list(self.exporter.get_finished_spans())


@pytest.fixture
async def traced(start: Start) -> AsyncIterator[Traced]:
    serving = Traced()
    await (await start(serving)).ready()
    yield serving
    await serving.tracing.close()


def attributes(span: ReadableSpan) -> dict[str, object]:
    assert span.attributes is not None
    return dict(span.attributes)


def root(spans: list[ReadableSpan]) -> ReadableSpan:
    (span,) = [span for span in spans if span.kind is SpanKind.SERVER]
    return span


async def test_a_call_is_a_span_with_a_queue_a_prefill_and_a_decode_within(traced: Traced) -> None:
    await traced.events(generate_request("hello", max_new_tokens=6, request_id="mine"))
    spans = await traced.spans()
    call = root(spans)
    assert call.name == "treadle.v1.GenerationService/Generate"
    assert call.parent is None
    assert call.status.status_code is StatusCode.UNSET
    told = attributes(call)
    assert told["rpc.system.name"] == "grpc"
    assert told["rpc.response.status_code"] == "OK"
    assert told["treadle.request.id"] == "mine"
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.request.model"] == "fake"
    assert told["gen_ai.request.max_tokens"] == 6
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (6, 6)
    assert told["gen_ai.response.finish_reasons"] == ("MAX_NEW_TOKENS",)
    phases = [span for span in spans if span is not call]
    assert [span.name for span in phases] == ["queue", "prefill", "decode"]
    assert call.context is not None
    assert all(span.parent is not None and span.parent.span_id == call.context.span_id for span in phases)
    moments = [moment for span in phases for moment in (span.start_time, span.end_time)]
    assert None not in moments
    assert moments == sorted(moment for moment in moments if moment is not None)
    assert phases[0].start_time == call.start_time


async def test_the_span_of_a_client_is_the_parent(traced: Traced) -> None:
    await traced.generate_under(traceparent=TRACEPARENT, tracestate="vendor=1")
    call = root(await traced.spans())
    assert call.parent is not None
    assert f"{call.parent.trace_id:032x}" == TRACEPARENT[3:35]
    assert f"{call.parent.span_id:016x}" == TRACEPARENT[36:52]
    assert call.parent.trace_state.get("vendor") == "1"


async def test_a_client_that_does_not_sample_its_trace_gets_no_spans(traced: Traced) -> None:
    await traced.generate_under(traceparent=TRACEPARENT[:-1] + "0")
    assert await traced.spans() == []


@pytest.mark.parametrize("traceparent", ["nonsense", "00-0-0-01", "", "ff" * 2000])
async def test_a_traceparent_that_makes_no_sense_is_passed_over(traced: Traced, traceparent: str) -> None:
    await traced.generate_under(traceparent=traceparent)
    assert root(await traced.spans()).parent is None


async def test_a_refusal_is_a_span_that_says_why_and_is_no_error_of_the_server(traced: Traced) -> None:
    await traced.refusal(pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(top_p=2)))
    (call,) = await traced.spans()
    assert attributes(call)["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert attributes(call)["error.type"] == "INVALID_ARGUMENT"
    assert call.status.status_code is StatusCode.UNSET


async def test_a_failure_of_the_server_is_an_error(traced: Traced) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("on purpose")

    traced.model.before_step = fail
    await traced.refusal(generate_request())
    call = root(await traced.spans())
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, "STEP_FAILED")


async def test_prompts_and_text_are_in_no_span(traced: Traced) -> None:
    events = await traced.events(generate_request("a secret", max_new_tokens=30))
    text = "".join(event.tokens.text for event in events)
    shown = "".join(span.to_json() for span in await traced.spans())
    assert "secret" not in shown
    assert text not in shown


async def test_many_generations_of_a_call_have_a_bounded_number_of_spans(traced: Traced) -> None:
    request = generate_request(max_new_tokens=2)
    request.sampling.n = 12
    request.sampling.temperature = 1.0
    await traced.stub.Complete(pb.CompleteRequest(generate=request))
    spans = await traced.spans()
    assert len(spans) == 1 + 3 * MAX_TRACED_GENERATIONS
    finishes = attributes(root(spans))["gen_ai.response.finish_reasons"]
    assert isinstance(finishes, tuple)
    assert len(finishes) == 12


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it is sent."""

    received: list[trace_service_pb2.ExportTraceServiceRequest] = field(default_factory=list)

    def Export(  # noqa: N802 - the service's own name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.received.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class Exporting(Traced):
    """Its spans go to an OTLP collector on this port."""

    collector_port: int

    def observers(self) -> Sequence[CallObserver]:
        self.tracing = tracing_to(f"http://127.0.0.1:{self.collector_port}")
        return (self.tracing,)


async def test_spans_arrive_at_an_otlp_collector(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    serving = Exporting()
    serving.collector_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    await (await start(serving)).ready()
    await serving.events(generate_request())
    await serving.server.idle()
    await serving.tracing.close()
    await eventually(lambda: collector.received)
    await asyncio.to_thread(server.stop(None).wait)
    (resource_spans,) = collector.received[0].resource_spans
    names = [span.name for scope in resource_spans.scope_spans for span in scope.spans]
    assert sorted(names) == ["decode", "prefill", "queue", "treadle.v1.GenerationService/Generate"]
    resource = {each.key: each.value.string_value for each in resource_spans.resource.attributes}
    assert resource["service.name"] == "treadle"
    assert re.fullmatch(r"\d+\.\d+.*", resource["service.version"])
    assert resource["deployment.environment.name"] == "test"

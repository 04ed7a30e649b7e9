"""The Metrics: what Prometheus is told. docs/OBSERVABILITY.md has the table of them and why they are named so."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from server.engine.engine import Engine
from server.engine.events import FinishReason, Result
from server.observe.call_record import CallRecord, GenerationFacts
from server.observe.engine_metrics import EngineMetrics

PROVIDER = "treadle"
GEN_AI_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")

# The conventions' own bounds, and beyond them what long generations and full queues need.
DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 655.36)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
OUTPUT_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
QUEUE = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Exposition:
    """All metrics as text."""

    content_type: str
    body: bytes


class Metrics:
    """In a registry of its own. Ended calls are counted as they are told; the engine is asked when it is scraped."""

    def __init__(self, engine: Engine, refusal_reasons: Iterable[str] = ()) -> None:
        """`refusal_reasons` are shown from the start, as 0: a rate sees nothing of a counter's first value."""
        self._registry = registry = _Registry()
        self._requests = Counter("treadle_requests", "Calls ended", ("method", "status"), registry=registry)
        self._refusals = Counter(
            "treadle_refusals", "Calls the server refused or failed, by why", ("reason",), registry=registry
        )
        self._finished = Counter(
            "treadle_request_success", "Generations that came to their end", ("finished_reason",), registry=registry
        )
        self._queued = Histogram(
            "treadle_request_queue_time_seconds", "Time from arrival to a slot", registry=registry, buckets=QUEUE
        )
        self._first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Time from arrival to the first token of a generation",
            GEN_AI_LABELS,
            registry=registry,
            buckets=FIRST_TOKEN,
        )
        self._output_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time of a generation's tokens after its first",
            GEN_AI_LABELS,
            registry=registry,
            buckets=OUTPUT_TOKEN,
        )
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "Time from the arrival of a call for generations to its end",
            (*GEN_AI_LABELS, "error_type"),
            registry=registry,
            buckets=DURATION,
        )
        build = Gauge(
            "treadle_build_info", "Always 1; its label says which version runs", ("version",), registry=registry
        )
        build.labels(version("treadle")).set(1)
        for reason in refusal_reasons:
            self._refusals.labels(reason)
        for finish in FinishReason:
            self._finished.labels(finish.name)
        registry.register(EngineMetrics(engine))
        ProcessCollector(registry=registry)

    def call_ended(self, record: CallRecord) -> None:
        self._requests.labels(record.rpc, record.status).inc()
        if record.reason is not None:
            self._refusals.labels(record.reason).inc()
        if record.asked is not None:
            labels = _gen_ai_labels(record.asked)
            error = "" if record.status == "OK" else record.status
            self._duration.labels(*labels, error).observe(record.ended_at - record.arrived_at)
            for result in record.results.values():
                self._generation_ended(result, labels)

    def exposition(self, accept: str) -> Exposition:
        """In the format that the HTTP header `accept` asks for. From any thread."""
        encode, content_type = choose_encoder(accept)
        return Exposition(content_type, encode(self._registry))

    def _generation_ended(self, result: Result, labels: tuple[str, ...]) -> None:
        self._finished.labels(result.finish.reason.name).inc()
        timing, tokens = result.timing, result.usage.completion_tokens
        self._queued.observe(timing.queued)
        if timing.time_to_first_token is not None:
            self._first_token.labels(*labels).observe(timing.time_to_first_token)
            if tokens > 1:
                mean = (timing.total - timing.time_to_first_token) / (tokens - 1)
                self._output_token.labels(*labels).observe(mean)


class _Registry(CollectorRegistry):
    """Leaves out the time at which each series was created, which would double their number for nothing."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def _gen_ai_labels(asked: GenerationFacts) -> tuple[str, ...]:
    return asked.operation, PROVIDER, asked.model

"""What the engine is doing, read when it is scraped: nothing is counted here, and nothing is asked between scrapes."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from server.engine.counters import Counts
from server.engine.engine import Engine, Lifecycle
from server.engine.errors import EngineError
from server.engine.histogram import HistogramSnapshot
from server.engine.load import Load
from server.engine.model import ModelDescription


class EngineMetrics(Collector):
    """Of its thread-safe snapshots. While there is no model, only what is true without one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        yield self._lifecycle()
        progresses = self._engine.is_making_progress()
        yield _gauge(
            "treadle_scheduler_progress", "1 while the scheduler's loop turns, 0 when stuck or dead", progresses
        )
        settings = self._engine.settings
        yield _gauge("treadle_slots", "Sequences that run at once at most", settings.max_slots)
        yield _gauge("treadle_waiting_limit", "Generations that may wait for a slot", settings.max_waiting)
        with suppress(EngineError):  # no model yet, or none any more
            yield _of_model(self._engine.served.model.description)
        with suppress(EngineError):
            yield from _of_load(self._engine.load())
            yield from _of_counts(self._engine.counts())

    def _lifecycle(self) -> Metric:
        family = GaugeMetricFamily(
            "treadle_lifecycle_state", "1 for the state the server is in, 0 for the others", labels=["state"]
        )
        now = self._engine.lifecycle
        for state in Lifecycle:
            family.add_metric([state.name], float(state is now))
        return family


def _of_model(model: ModelDescription) -> Metric:
    labels = ["model", "architecture", "weight_type", "device"]
    family = GaugeMetricFamily("treadle_model_info", "Always 1; its labels say what is served", labels=labels)
    family.add_metric([model.id, model.architecture, model.weight_type, model.device], 1.0)
    return family


def _of_load(load: Load) -> Iterator[Metric]:
    yield _gauge("treadle_num_requests_running", "Generations in slots", load.running)
    yield _gauge("treadle_num_requests_waiting", "Generations waiting for a slot", load.waiting)
    blocks = GaugeMetricFamily(
        "treadle_kv_blocks", "Blocks of the KV cache: used, free but holding a prefix, free", labels=["state"]
    )
    free = load.kv_blocks_total - load.kv_blocks_used - load.kv_blocks_cached
    for state, count in (("used", load.kv_blocks_used), ("cached", load.kv_blocks_cached), ("free", max(0, free))):
        blocks.add_metric([state], count)
    yield blocks
    usage = load.kv_blocks_used / load.kv_blocks_total
    yield _gauge("treadle_kv_cache_usage_perc", "Share of the KV blocks in use, from 0 to 1", usage)


def _of_counts(counts: Counts) -> Iterator[Metric]:
    yield _counter("treadle_num_preemptions", "Times a generation lost its slot for another", counts.preemptions)
    yield _counter("treadle_prompt_tokens", "Tokens of admitted prompts", counts.prompt_tokens)
    yield _counter("treadle_generation_tokens", "Tokens generated", counts.generated_tokens)
    queried, found = counts.prefix_queried_tokens, counts.prefix_found_tokens
    yield _counter("treadle_prefix_cache_queries", "Tokens of prompts looked for in the prefix cache", queried)
    yield _counter("treadle_prefix_cache_hits", "Tokens of prompts found in the prefix cache", found)
    yield _histogram("treadle_step_duration_seconds", "Time the model took for a step", counts.step_durations)
    yield _histogram("treadle_step_tokens", "Tokens computed by a step", counts.step_tokens)
    yield _histogram(
        "treadle_inter_token_latency_seconds", "Time from a token of a generation to the next", counts.token_gaps
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, snapshot: HistogramSnapshot) -> Metric:
    bounds = [*map(floatToGoString, snapshot.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(map(float, snapshot.counts)), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=snapshot.total)

"""A server that is observed, and what a scrape of it says."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from server.observe.call_record import CallObserver
from server.observe.metrics import Metrics
from server.rpc.statuses import REASONS
from tests.server.rpc.serving import Serving


class Observed(Serving):
    """A Serving whose calls are counted."""

    metrics: Metrics

    def observers(self) -> Sequence[CallObserver]:
        self.metrics = Metrics(self.engine, REASONS)
        return (self.metrics,)

    def scrape(self) -> "Scrape":
        return Scrape(self.metrics.exposition("").body.decode())


@dataclass(frozen=True)
class Scrape:
    text: str

    def value(self, name: str, **labels: str) -> float | None:
        """Of the one sample with that name and those labels among its own; None where there is none."""
        values = [
            sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(values) <= 1, (name, values)
        return values[0] if values else None

    def labels(self, name: str) -> list[dict[str, str]]:
        families = text_string_to_metric_families(self.text)
        return [sample.labels for family in families for sample in family.samples if sample.name == name]

    def families(self) -> dict[str, str]:
        """The type of each metric, by the name Prometheus knows it under."""
        lines = [line.split() for line in self.text.splitlines() if line.startswith("# TYPE ")]
        return {name: kind for _, _, name, kind in lines}

"""The table of metrics in the documentation."""

import re
from pathlib import Path

ROW = re.compile(r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \|", re.MULTILINE)


def documented_metrics() -> dict[str, str]:
    """The type of each metric, by its name."""
    rows = ROW.findall(Path("docs/OBSERVABILITY.md").read_text())
    metrics = dict(rows)
    assert len(metrics) == len(rows), "a metric is in the table twice"
    return metrics

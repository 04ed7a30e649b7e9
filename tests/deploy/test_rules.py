"""The alerts and the dashboard, by promtool and against the metrics there are."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.observe.documented import documented_metrics
from tests.server.observe.promtool import needs_promtool, promtool

MONITORING = Path("deploy/overlays/monitoring")
STORIES = Path("tests/deploy/rules_test.yaml")
METRIC = re.compile(r"\b(?:treadle|gen_ai|process)_[a-z_]+\b(?=[{\[ )]|$)")


@dataclass(frozen=True)
class Rules:
    """The groups of the PrometheusRule, as Prometheus itself takes them."""

    groups: dict[str, Any]

    def alerts(self) -> dict[str, dict[str, Any]]:
        return {rule["alert"]: rule for group in self.groups["groups"] for rule in group["rules"]}

    def write(self, directory: Path) -> Path:
        path = directory / "rules.yaml"
        path.write_text(yaml.safe_dump(self.groups))
        return path


@pytest.fixture
def rules() -> Rules:
    resource = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    assert (resource["apiVersion"], resource["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    return Rules(resource["spec"])


@pytest.fixture
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return loaded


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    """The dashboard's own, with what Grafana fills in filled in."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield re.sub(r"\$(job|instance)", ".*", target["expr"]).replace("$__rate_interval", "1m")


def metrics_in(query: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(query)}


@needs_promtool
def test_promtool_takes_the_rules(rules: Rules, tmp_path: Path) -> None:
    checked = promtool("check", "rules", "--lint-fatal", str(rules.write(tmp_path)))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then(rules: Rules, tmp_path: Path) -> None:
    rules.write(tmp_path)
    stories = tmp_path / STORIES.name
    stories.write_text(STORIES.read_text())
    tested = promtool("test", "rules", str(stories))
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
@pytest.mark.parametrize("name", ["TreadleQueueLong", "TreadleRefusing", "TreadleKVCacheFull", "TreadleFirstTokenSlow"])
def test_an_alert_that_could_never_fire_would_be_noticed(rules: Rules, tmp_path: Path, name: str) -> None:
    rules.alerts()[name]["expr"] += " > 1e9"
    rules.write(tmp_path)
    stories = tmp_path / STORIES.name
    stories.write_text(STORIES.read_text())
    assert promtool("test", "rules", str(stories)).returncode == 1


def test_each_alert_has_a_story_in_which_it_fires(rules: Rules) -> None:
    stories = yaml.safe_load(STORIES.read_text())["tests"]
    fired = {test["alertname"] for story in stories for test in story["alert_rule_test"] if test["exp_alerts"]}
    assert fired == rules.alerts().keys()


def test_each_alert_says_how_bad_it_is_and_what_it_means(rules: Rules) -> None:
    for alert in rules.alerts().values():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"].keys() == {"summary", "description"}


def test_alerts_and_dashboard_ask_for_metrics_that_exist(rules: Rules, dashboard: dict[str, Any]) -> None:
    expressions = [alert["expr"] for alert in rules.alerts().values()] + list(queries(dashboard))
    for expression in expressions:
        assert metrics_in(expression), expression
        assert metrics_in(expression) <= documented_metrics().keys(), expression


@needs_promtool
def test_promtool_can_read_each_query_of_the_dashboard(dashboard: dict[str, Any], tmp_path: Path) -> None:
    recorded = [{"record": f"panel_{i}", "expr": query} for i, query in enumerate(queries(dashboard))]
    path = Rules({"groups": [{"name": "dashboard", "rules": recorded}]}).write(tmp_path)
    checked = promtool("check", "rules", str(path))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_dashboards_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_the_dashboard_reads_the_source_of_data_that_is_chosen_in_it(dashboard: dict[str, Any]) -> None:
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "job", "instance"]
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["description"]

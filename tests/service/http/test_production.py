"""The files of docs/production.md: dashboards and alerts use existing metrics, and systemd accepts the unit."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from factorcell.service.http.application import Metrics
from factorcell.service.http.operations import OPERATIONS
from tests import ROOT

PAGE = ROOT / "docs" / "production.md"
FILES = ROOT / "docs" / "production"
METRIC = re.compile(r"\b(factorcell_[a-z_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'([a-z]+)=~?"([^"]*)"')
# The values of each label, or a pattern for them.
VALUES = {
    "operation": "|".join(operation.name for operation in OPERATIONS),
    "status": r"[45]\d\d",
    "why": "time|store",
    "outcome": "served|refused",
}


def exported() -> dict[str, set[str]]:
    metrics = Metrics()
    metrics.requests.labels("complete", 200).inc()
    metrics.seconds.labels("complete").observe(0.1)
    metrics.degraded.labels("time").inc()
    metrics.accepts.labels("learned").inc()
    metrics.models.labels("served").inc()
    metrics.waiting.labels("search").inc()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def expressions() -> dict[str, list[str]]:
    dashboard = json.loads((FILES / "grafana.json").read_text(encoding="utf-8"))
    rules = (FILES / "alerts.yml").read_text(encoding="utf-8")
    return {
        "grafana.json": [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]],
        "alerts.yml": re.findall(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", rules, re.DOTALL),
    }


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml"])
def test_every_queried_metric_exists(name: str) -> None:
    known, queries = exported(), expressions()[name]
    assert len(queries) >= 7
    for expression in queries:
        used = METRIC.findall(expression)
        assert used or 'up{job="factorcell"}' in expression
        for metric, selector in used:
            assert metric in known, metric
            grouped = re.findall(r"by \(([a-z, ]+)\)", expression)
            labels = {label for labels in grouped for label in labels.split(", ")} - {"instance"}
            assert labels <= known[metric], expression
            for label, value in LABEL.findall(selector):
                assert label in known[metric], expression
                example = value.replace("[45]..", "503")
                assert re.fullmatch(VALUES[label], example), expression


def test_every_metric_is_on_the_dashboard_and_documented() -> None:
    known = {re.sub("_(bucket|sum|count|created)$", "", name) for name in exported()}
    known = {name if f"{name}_total" not in known else f"{name}_total" for name in known}
    shown = {metric for expression in expressions()["grafana.json"] for metric, _ in METRIC.findall(expression)}
    assert {re.sub("_(bucket|sum)$", "", name) for name in shown} == known
    documented = set(re.findall(r"^\| `(factorcell_[a-z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented == known


def test_every_alert_is_documented() -> None:
    rules = (FILES / "alerts.yml").read_text(encoding="utf-8")
    documented = re.findall(r"`(Factorcell[A-Za-z]+)`", PAGE.read_text(encoding="utf-8"))
    assert sorted(documented) == sorted(re.findall("alert: ([A-Za-z]+)", rules))


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (FILES / "factorcell.service").read_text(encoding="utf-8")
    path = tmp_path / "factorcell.service"
    path.write_text(unit.replace("/opt/factorcell/bin/factorcell", f"{sys.executable} -m factorcell"))
    result = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")

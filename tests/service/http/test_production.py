"""What docs/production.md gives to others to run: figures that exist, a unit that systemd takes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from factorcell.service.http.metrics import Metrics
from factorcell.service.http.operations import OPERATIONS
from tests import ROOT
from tests.test_docs import blocks

PAGE = ROOT / "docs" / "production.md"
GIVEN = ROOT / "docs" / "production"
FIGURE = re.compile(r"\b(factorcell_[a-z_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'([a-z]+)=~?"([^"]*)"')
# The values that labels take, or what they match.
VALUES = {
    "operation": "|".join(one.name for one in OPERATIONS),
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
    board = json.loads((GIVEN / "grafana.json").read_text(encoding="utf-8"))
    rules = (GIVEN / "alerts.yml").read_text(encoding="utf-8")
    return {
        "grafana.json": [target["expr"] for panel in board["panels"] for target in panel["targets"]],
        "alerts.yml": re.findall(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", rules, re.DOTALL),
    }


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml"])
def test_every_figure_that_is_asked_for_exists(name: str) -> None:
    known, asked = exported(), expressions()[name]
    assert len(asked) >= 7
    for expression in asked:
        found = FIGURE.findall(expression)
        assert found or 'up{job="factorcell"}' in expression
        for figure, chosen in found:
            assert figure in known, figure
            grouped = re.findall(r"by \(([a-z, ]+)\)", expression)
            labels = {label for labels in grouped for label in labels.split(", ")} - {"instance"}
            assert labels <= known[figure], expression
            for label, value in LABEL.findall(chosen):
                assert label in known[figure], expression
                wanted = value.replace("[45]..", "503")
                assert re.fullmatch(VALUES[label], wanted), expression


def test_every_figure_is_shown_and_told() -> None:
    known = {re.sub("_(bucket|sum|count|created)$", "", name) for name in exported()}
    known = {name if f"{name}_total" not in known else f"{name}_total" for name in known}
    shown = {figure for one in expressions()["grafana.json"] for figure, _ in FIGURE.findall(one)}
    assert {re.sub("_(bucket|sum)$", "", name) for name in shown} == known
    told = set(re.findall(r"^\| `(factorcell_[a-z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert told == known


def test_every_alert_is_told() -> None:
    rules = (GIVEN / "alerts.yml").read_text(encoding="utf-8")
    told = re.findall(r"`(Factorcell[A-Za-z]+)`", PAGE.read_text(encoding="utf-8"))
    assert sorted(told) == sorted(re.findall("alert: ([A-Za-z]+)", rules))


def test_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    (unit,) = [block.code for block in blocks(PAGE.read_text(encoding="utf-8")) if block.language == "ini"]
    path = tmp_path / "factorcell.service"
    path.write_text(unit.replace("/opt/factorcell/bin/factorcell", f"{sys.executable} -m factorcell"))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")

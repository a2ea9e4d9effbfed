"""Comparison of models: the contents of a row, and which model is significantly better."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.text_figures import TextSums

TARGETS = np.full(50, 10.0)


def model(name: str, *nats: float, accuracy: float | None = None, noise: float = 0.05, key: str = "a") -> ComparedModel:
    """Return a model with one training for each of `nats` per target; its texts vary around that value."""
    random = np.random.default_rng(len(name))
    rows: list[dict[str, Any]] = []
    texts = []
    for value in nats:
        spread = random.normal(0, noise, 50)
        sums = {"perplexity": TextSums(key, TARGETS * (value + spread - spread.mean()), TARGETS)}
        rows.append({"perplexity": math.exp(value), "parameters": 1000, "minutes": 1.5, "kind": "compare"})
        if accuracy is not None:
            rows[-1]["accuracy"] = accuracy
            sums["accuracy"] = TextSums(key, (np.arange(50) < 50 * accuracy).astype(float), np.ones(50))
        texts.append(sums)
    return ComparedModel(name, rows, texts)


def test_a_model_is_best_only_if_all_differences_are_significant() -> None:
    comparison = compare_models(
        [model("plain", 4.0), model("bias", 3.9, accuracy=0.5), model("cell", 3.7, accuracy=0.52)]
    )
    plain, bias, cell = comparison
    assert "gain_over_baseline" not in plain
    assert bias["gain_over_baseline"] == pytest.approx(1 - math.exp(-0.1))
    assert bias["gain_over_baseline_low"] < bias["gain_over_baseline"] < bias["gain_over_baseline_high"]
    assert "accuracy_above_baseline" not in bias
    assert cell["accuracy_above_baseline"] == pytest.approx(0.02)
    assert cell["accuracy_above_baseline_low"] <= 0
    assert [row["ahead"] for row in comparison] == [[], [], ["perplexity"]]
    table = str(comparison)
    assert table.splitlines()[0].split("  ")[0] == "model"
    assert f"{math.exp(3.7):.2f}*" in table
    assert "+2.0 pt [+0.0, +6.0] not significant" in table
    assert "gain over plain" in table
    assert cell["baseline"] == {"gain_over_baseline": "plain", "accuracy_above_baseline": "bias"}
    assert "accuracy above bias" in table
    assert "* marks a figure that is significantly better than all others" in table
    assert "±" not in table


def test_the_interval_of_an_accuracy_is_that_of_all_trainings() -> None:
    trainings = [model("cell", 3.8, accuracy=accuracy) for accuracy in (0.4, 0.8)]
    rows = [{**part.rows[0], "accuracy_low": 0.35, "accuracy_high": 0.45} for part in trainings]
    (row,) = compare_models([ComparedModel("cell", rows, [part.texts[0] for part in trainings])])
    assert row["accuracy"] == pytest.approx(0.6)
    assert row["accuracy_low"] < 0.4
    assert row["accuracy_high"] > 0.8
    (row,) = compare_models([ComparedModel("cell", rows, [{}, {}])])
    assert "accuracy_low" not in row


def test_no_difference_is_significant_if_trainings_differ_more_than_models() -> None:
    single = compare_models([model("plain", 4.0), model("cell", 3.8)])
    assert single[1]["ahead"] == ["perplexity"]
    several = compare_models([model("plain", 4.0, 3.7, 4.1), model("cell", 3.8, 4.0, 3.85)])
    assert [row["ahead"] for row in several] == [[], []]
    assert several[1]["gain_over_baseline_low"] < 0 < several[1]["gain_over_baseline_high"]
    mean = math.exp((4.0 + 3.7 + 4.1) / 3)
    assert several[0]["perplexity"] == pytest.approx(mean)
    values = [math.exp(value) for value in (4.0, 3.7, 4.1)]
    assert several[0]["perplexity_deviation"] == pytest.approx(float(np.std(values, ddof=1)))
    assert several[0]["trainings"] == 3
    table = str(several)
    assert f"{mean:.2f} ± {np.std(values, ddof=1):.2f}" in table
    assert "confidence intervals over texts and trainings" in table


def test_models_of_different_texts_are_not_compared() -> None:
    comparison = compare_models([model("plain", 4.0), model("cell", 3.5), model("other", 3.0, key="b")])
    assert "gain_over_baseline" in comparison[1]
    assert "gain_over_baseline" not in comparison[2]
    assert not any(row["ahead"] for row in comparison)
    without_figures = ComparedModel("old", model("old", 3.0).rows, [{}])
    assert not any(row["ahead"] for row in compare_models([model("plain", 4.0), model("cell", 3.5), without_figures]))
    assert not any(
        "gain_over_baseline" in row
        for row in compare_models([without_figures, model("plain", 4.0), model("cell", 3.5)])
    )


def test_one_model_has_no_differences() -> None:
    assert compare_models([]) == []
    comparison_of_one = compare_models([model("plain", 4.0)])
    assert isinstance(comparison_of_one, Comparison)
    assert comparison_of_one.table()[1] == ["model", "perplexity", "parameters", "minutes"]
    assert comparison_of_one.notes() == []
    assert len(comparison_of_one) == 1
    diverged = ComparedModel(
        "lost", [{"perplexity": math.inf}], [{"perplexity": TextSums("a", TARGETS * math.inf, TARGETS)}]
    )
    comparison = compare_models([model("plain", 4.0), diverged])
    assert not any(row["ahead"] for row in comparison)
    assert "inf" in str(comparison)


def test_gains_over_an_unknown_context_have_a_column_of_their_own() -> None:
    cell = model("cell", 3.9)
    more = {"gain_over_unknown_context": 0.5, "majority": 0.25, "linear_accuracy": 0.75}
    cell = replace(cell, rows=[{**cell.rows[0], **more}])
    cells, columns = compare_models([model("plain", 4.0), cell]).table()
    names = ["gain over an unknown context (same model)", "gain over plain", "majority class", "linear baseline"]
    assert [name for name in columns if name in names] == names
    assert [cells[1][name] for name in (names[0], *names[2:])] == ["+50.0%", "0.2500", "0.7500"]

"""Models side by side: what a row has, and who is ahead."""

import math
from typing import Any

import numpy as np
import pytest

from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.text_figures import TextSums

TARGETS = np.full(50, 10.0)


def candidate(
    name: str, *nats: float, accuracy: float | None = None, noise: float = 0.05, key: str = "a"
) -> ComparedModel:
    """A model with a training for each of `nats` a target, its texts around that."""
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


def test_a_model_is_ahead_only_beyond_all_intervals() -> None:
    found = compare_models(
        [candidate("plain", 4.0), candidate("bias", 3.9, accuracy=0.5), candidate("cell", 3.7, accuracy=0.52)]
    )
    plain, bias, cell = found
    assert "gain" not in plain
    assert bias["gain"] == pytest.approx(1 - math.exp(-0.1))
    assert bias["gain_low"] < bias["gain"] < bias["gain_high"]
    assert "accuracy_difference" not in bias
    assert cell["accuracy_difference"] == pytest.approx(0.02)
    assert cell["accuracy_difference_low"] <= 0
    assert [row["ahead"] for row in found] == [[], [], ["perplexity"]]
    table = str(found)
    assert table.splitlines()[0].split("  ")[0] == "model"
    assert f"{math.exp(3.7):.2f}*" in table
    assert "+2.0 pt [+0.0, +6.0] not significant" in table
    assert "gain over plain" in table
    assert "accuracy above bias" in table
    assert "* is better than all others" in table
    assert "±" not in table


def test_trainings_that_differ_more_than_models_leave_no_difference() -> None:
    once = compare_models([candidate("plain", 4.0), candidate("cell", 3.8)])
    assert once[1]["ahead"] == ["perplexity"]
    several = compare_models([candidate("plain", 4.0, 3.7, 4.1), candidate("cell", 3.8, 4.0, 3.85)])
    assert [row["ahead"] for row in several] == [[], []]
    assert several[1]["gain_low"] < 0 < several[1]["gain_high"]
    mean = math.exp((4.0 + 3.7 + 4.1) / 3)
    assert several[0]["perplexity"] == pytest.approx(mean)
    values = [math.exp(value) for value in (4.0, 3.7, 4.1)]
    assert several[0]["perplexity_deviation"] == pytest.approx(float(np.std(values, ddof=1)))
    assert several[0]["trainings"] == 3
    table = str(several)
    assert f"{mean:.2f} ± {np.std(values, ddof=1):.2f}" in table
    assert "other texts and other trainings" in table


def test_what_read_other_texts_is_not_compared() -> None:
    found = compare_models([candidate("plain", 4.0), candidate("cell", 3.5), candidate("other", 3.0, key="b")])
    assert "gain" in found[1]
    assert "gain" not in found[2]
    assert not any(row["ahead"] for row in found)
    unknown = ComparedModel("old", candidate("old", 3.0).rows, [{}])
    assert not any(row["ahead"] for row in compare_models([candidate("plain", 4.0), candidate("cell", 3.5), unknown]))
    assert not any("gain" in row for row in compare_models([unknown, candidate("plain", 4.0), candidate("cell", 3.5)]))


def test_one_model_has_no_differences() -> None:
    assert compare_models([]).rows == []
    alone = compare_models([candidate("plain", 4.0)])
    assert isinstance(alone, Comparison)
    assert alone.titles() == {}
    assert alone.notes() == []
    assert len(alone) == 1
    lost = ComparedModel(
        "lost", [{"perplexity": math.inf}], [{"perplexity": TextSums("a", TARGETS * math.inf, TARGETS)}]
    )
    found = compare_models([candidate("plain", 4.0), lost])
    assert not any(row["ahead"] for row in found)
    assert "inf" in str(found)

"""Tests that the last saved result of each measurement is read, and how results are listed."""

from pathlib import Path
from typing import Any

from factorcell.runs import saved_results
from factorcell.runs.saved_results import measurements, read


def evaluation(table: str, perplexity: float, **more: Any) -> dict[str, Any]:
    return {"kind": "evaluate", "table": table, "texts": 40, "perplexity": perplexity, **more}


def classification(classifier: str, accuracy: float, **more: Any) -> dict[str, Any]:
    row = {"kind": "classify", "table": "a.csv", "target": "stars", "classifier": classifier}
    return {**row, "accuracy": accuracy, **more}


def test_a_later_result_replaces_an_earlier_one_of_the_same_measurement(tmp_path: Path) -> None:
    first = evaluation("a.csv", 55.3)
    others = [
        evaluation("b.csv", 60.0),
        evaluation("a.csv", 50.0, predictor="mixture"),
        evaluation("a.csv", 55.3, baseline="plain"),
        classification("model", 0.5),
        classification("combined", 0.6),
        {**classification("model", 0.7), "target": "city"},
    ]
    last = evaluation("a.csv", 55.0)
    for row in (first, *others, last):
        saved_results.append(tmp_path, row)
    assert read(tmp_path) == [*others, last]


def test_values_have_units_intervals_and_references() -> None:
    rows = [
        evaluation("a.csv", 9.0, unit="word", gain_over_unknown_context=0.1),
        evaluation(
            "a.csv",
            9.0,
            unit="word",
            baseline="plain",
            **{"gain_over_baseline": -0.2, "gain_over_baseline_low": -0.3, "gain_over_baseline_high": 0.1},
        ),
        evaluation("b.csv", 8.0, predictor="mixture", bits_per_byte=2.5, bits_per_byte_low=2.4, bits_per_byte_high=2.6),
        classification("model", 0.7, majority=0.5, linear_accuracy=None, auc=0.8),
        classification("combined", 0.9, majority=0.5, linear_accuracy=0.85),
    ]
    assert [row[:3] for row in measurements(rows)] == [
        ("a.csv", "perplexity per word", "9.00"),
        ("a.csv", "gain over an unknown context (same model)", "+10.0%"),
        ("a.csv", "gain over plain", "-20.0% [-30.0, +10.0] not significant"),
        ("b.csv", "perplexity, mixture", "8.00"),
        ("b.csv", "bits per byte, mixture", "2.500 [2.400, 2.600]"),
        ("a.csv", "accuracy of stars (model)", "0.7000, majority class 0.5000"),
        ("a.csv", "auc of stars (model)", "0.8000"),
        ("a.csv", "accuracy of stars (combined)", "0.9000, majority class 0.5000, linear baseline 0.8500"),
    ]

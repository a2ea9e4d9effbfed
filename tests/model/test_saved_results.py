"""Tests that the last saved result of each measure on each table is listed."""

from typing import Any

from factorcell.model.saved_results import (
    Measurement,
    latest_accuracies,
    latest_evaluations,
    latest_gains,
    latest_measurements,
)


def evaluation(table: str, key: str, perplexity: float, **more: Any) -> dict[str, Any]:
    row = {"table": table, "texts": 40, "texts_key": key, "perplexity": perplexity, **more}
    return {"kind": "evaluate", "evaluation": row, "by": {}}


def classification(key: str, accuracy: float | None, **more: Any) -> dict[str, Any]:
    row = {"kind": "classify", "table": "a.csv", "target": "stars", "texts": 40, "texts_key": key}
    return {**row, "accuracy": accuracy, **more}


def test_later_result_replaces_an_earlier_one() -> None:
    rows = [
        evaluation("a.csv", "1", 55.3, precision="float32"),
        evaluation("b.csv", "2", 60.0),
        evaluation("a.csv", "1", 55.32, precision="bfloat16"),
    ]
    assert latest_measurements(rows) == [
        Measurement("a.csv", "perplexity", 55.32),
        Measurement("b.csv", "perplexity", 60.0),
    ]


def test_tables_with_the_same_name_are_distinguished_by_their_number_of_texts() -> None:
    rows = [evaluation("a.csv", "1", 55.0), evaluation("a.csv", "2", 60.0, texts=1200)]
    assert [measurement.table for measurement in latest_measurements(rows)] == [
        "a.csv (40 texts)",
        "a.csv (1,200 texts)",
    ]


def test_classifications_with_other_settings_are_listed_separately() -> None:
    rows = [
        classification("1", 0.5, priors="uniform"),
        classification("1", 0.6, priors="training"),
        classification("1", 0.7, priors="training", temperature=2.0),
        classification("1", 0.4, priors="uniform", samples=1000),
        classification("1", 0.55, priors="uniform"),
    ]
    assert [measurement[:3] for measurement in latest_measurements(rows)] == [
        ("a.csv", "accuracy of stars, model, uniform priors", 0.55),
        ("a.csv", "accuracy of stars, model, training priors", 0.6),
        ("a.csv", "accuracy of stars, model, training priors, calibrated", 0.7),
        ("a.csv", "accuracy of stars, model, uniform priors, 1,000 samples", 0.4),
    ]


def test_an_accuracy_of_a_combination_is_listed_with_that_of_the_model_alone() -> None:
    others = [{"classifier": "model, uniform priors", "accuracy": 0.5}, {"classifier": "linear", "accuracy": 0.6}]
    combined = {"priors": "uniform", "combination_weights": {"likelihood": 1.0}, "confusion": {}, "others": others}
    rows = [classification("1", 0.7, **combined), classification("2", 0.9, priors="uniform", texts=4)]
    combination = "model, uniform priors, combined with a linear classifier"
    assert [(row["texts"], row["classifier"], row["accuracy"]) for row in latest_accuracies(rows)] == [
        (40, "linear", 0.6),
        (40, "model, uniform priors", 0.5),
        (40, combination, 0.7),
        (4, "model, uniform priors", 0.9),
    ]
    measures = [(measurement.measure, measurement.value) for measurement in latest_measurements(rows)]
    assert (f"accuracy of stars, {combination}", 0.7) in measures
    assert measures.count(("accuracy of stars, model, uniform priors", 0.5)) == 1


def test_only_accuracies_of_the_model_are_those_of_its_mixture() -> None:
    others = [{"classifier": "model, uniform priors", "accuracy": 0.5}, {"classifier": "linear", "accuracy": 0.6}]
    row = classification("1", 0.7, priors="training", predictor="mixture", others=others)
    assert {measurement.measure: measurement.value for measurement in latest_measurements([row])} == {
        "accuracy of stars, model, training priors, mixture": 0.7,
        "accuracy of stars, model, uniform priors, mixture": 0.5,
        "accuracy of stars, linear": 0.6,
    }


def test_bits_per_byte_have_an_interval_and_can_be_a_bound() -> None:
    row = evaluation("a.csv", "1", 9.0, bits_per_byte=2.5, bits_per_byte_low=2.4, bits_per_byte_high=2.6)
    bound = {**row, "evaluation": {**row["evaluation"], "bits_per_byte_bound": True}}
    assert latest_measurements([row])[-1] == Measurement("a.csv", "bits per byte", 2.5, 2.4, 2.6)
    assert latest_measurements([row, bound])[-1] == Measurement(
        "a.csv", "bits per byte", 2.5, 2.4, 2.6, is_lower_bound=True
    )


def test_comparison_replaces_results_of_its_parts() -> None:
    comparison = {
        "kind": "compare",
        "table": "a.csv",
        "texts": 50,
        "texts_key": "9",
        "perplexity": 8.0,
        "target": "stars",
        "priors": "uniform",
    }
    rows = [classification("1", 0.5, priors="uniform"), {**comparison, "accuracy": 0.5}]
    assert [measurement[:3] for measurement in latest_measurements(rows)] == [
        ("a.csv", "accuracy of stars, model, uniform priors", 0.5),
        ("a.csv", "perplexity", 8.0),
    ]


def test_latest_gains_of_each_table_and_baseline() -> None:
    first, second = [{"value": "1", "perplexity": 5.0}], [{"value": "1", "perplexity": 4.0}]
    rows = [
        {**evaluation("a.csv", "1", 9.0, over=None, gain=0.1), "by": {"stars": first}},
        {**evaluation("a.csv", "1", 9.0, over="ngram", gain=0.2), "by": {"stars": first}},
        {**evaluation("b.csv", "2", 7.0, over=None, gain=0.3), "by": {"stars": first, "city": first}},
        {**evaluation("a.csv", "1", 9.0, over="ngram", gain=0.4), "by": {"stars": second}},
        evaluation("a.csv", "1", 9.001),
    ]
    assert [tuple(gains) for gains in latest_gains(rows)] == [
        ("a.csv", "stars", None, first, False),
        ("a.csv", "stars", "ngram", second, False),
        ("b.csv", "stars", None, first, False),
        ("b.csv", "city", None, first, False),
    ]
    smaller, larger = latest_evaluations(rows)
    assert (smaller["table"], smaller["perplexity"], smaller["gains"]) == ("b.csv", 7.0, [{"over": None, "gain": 0.3}])
    assert (larger["table"], larger["perplexity"]) == ("a.csv", 9.001)
    assert larger["gains"] == [{"over": None, "gain": 0.1}, {"over": "ngram", "gain": 0.4}]
    assert "gain" not in larger
    assert latest_evaluations([]) == []


def test_results_of_a_changed_model_are_outdated() -> None:
    def compared(table: str, baseline: str | None, run: float, without: float, *columns: str) -> dict[str, Any]:
        row = evaluation(table, "1", run, over=baseline, gain=1 - run / without, perplexity_without=without)
        return {**row, "by": {column: [{"value": "1", "perplexity": run}] for column in columns}}

    first = [
        compared("a.csv", "plain", 4.7, 5.7, "stars"),
        compared("a.csv", None, 4.7, 6.0, "stars"),
        compared("b.csv", "plain", 4.9, 5.9, "stars"),
    ]

    def outdated(*later: dict[str, Any]) -> list[tuple[str, str | None]]:
        tables = latest_gains([*first, *later])
        return [(table.table, table.baseline) for table in tables if table.is_outdated]

    assert outdated() == []
    assert outdated(compared("a.csv", "plain", 4.701, 5.699)) == [], "they differ only by rounding"
    assert outdated(compared("a.csv", "plain", 4.7, 4.8)) == [("a.csv", "plain")], "the baseline has changed"
    assert outdated(compared("a.csv", "plain", 4.7, 4.8, "stars")) == []
    assert outdated(evaluation("a.csv", "1", 4.5)) == [("a.csv", "plain"), ("a.csv", None)], "the run has changed"
    assert outdated(evaluation("a.csv", "2", 4.5)) == [], "these are other texts"
    (*_, latest) = latest_evaluations([*first, evaluation("a.csv", "1", 4.5)])
    assert (latest["table"], latest["perplexity"], latest["gains"]) == ("a.csv", 4.5, [])


def test_an_accuracy_has_the_remark_of_its_classification() -> None:
    others = [{"classifier": "model, uniform priors", "accuracy": 0.7}, {"classifier": "linear", "accuracy": 1.0}]
    row = classification("1", 1.0, priors="training", others=others, auc=1.0, accuracy_remark="city predicts stars")
    remarks = {measurement.measure: measurement.remark for measurement in latest_measurements([row])}
    assert remarks == {
        "accuracy of stars, model, training priors": "city predicts stars",
        "accuracy of stars, model, uniform priors": "city predicts stars",
        "accuracy of stars, linear": None,
        "auc of stars, model, training priors": None,
    }


def test_perplexities_have_their_unit() -> None:
    measures = [
        measurement.measure for measurement in latest_measurements([evaluation("a.csv", "1", 9.0, unit="word")])
    ]
    assert measures == ["perplexity per word"]

"""Of the results that a folder keeps, the last one answers a question; others stay beside it."""

from typing import Any

from factorcell.model import saved_results
from factorcell.model.saved_results import Measurement, latest_gains, latest_measurements


def evaluated(table: str, key: str, perplexity: float, **more: Any) -> dict[str, Any]:
    row = {"table": table, "texts": 40, "texts_key": key, "perplexity": perplexity, **more}
    return {"kind": "evaluate", "evaluation": row, "by": {}}


def classified(key: str, accuracy: float | None, **more: Any) -> dict[str, Any]:
    row = {"kind": "classify", "table": "a.csv", "target": "stars", "texts": 40, "texts_key": key}
    return {**row, "accuracy": accuracy, **more}


def test_a_new_answer_replaces_the_old_one() -> None:
    rows = [
        evaluated("a.csv", "1", 55.3, precision="float32"),
        evaluated("b.csv", "2", 60.0),
        evaluated("a.csv", "1", 55.32, precision="bfloat16"),
    ]
    assert latest_measurements(rows) == [
        Measurement("a.csv", "perplexity", 55.32),
        Measurement("b.csv", "perplexity", 60.0),
    ]


def test_tables_of_one_name_are_told_by_their_texts() -> None:
    rows = [evaluated("a.csv", "1", 55.0), evaluated("a.csv", "2", 60.0, texts=1200)]
    assert [figure.table for figure in latest_measurements(rows)] == ["a.csv (40 texts)", "a.csv (1,200 texts)"]


def test_other_questions_of_a_table_stay() -> None:
    rows = [
        classified("1", 0.5, priors="uniform"),
        classified("1", 0.6, priors="training"),
        classified("1", 0.7, priors="training", temperature=2.0),
        classified("1", 0.4, priors="uniform", samples=1000),
        classified("1", 0.55, priors="uniform"),
    ]
    assert [figure[:3] for figure in latest_measurements(rows)] == [
        ("a.csv", "accuracy of stars", 0.55),
        ("a.csv", "accuracy of stars, priors of training", 0.6),
        ("a.csv", "accuracy of stars, priors of training, calibrated", 0.7),
        ("a.csv", "accuracy of stars, 1,000 samples", 0.4),
    ]


def test_bits_per_byte_have_their_interval_and_whether_they_are_a_bound() -> None:
    row = evaluated("a.csv", "1", 9.0, bits_per_byte=2.5, bits_per_byte_low=2.4, bits_per_byte_high=2.6)
    bound = {**row, "evaluation": {**row["evaluation"], "bits_per_byte_bound": True}}
    assert latest_measurements([row])[-1] == Measurement("a.csv", "bits per byte", 2.5, 2.4, 2.6)
    assert latest_measurements([row, bound])[-1] == Measurement("a.csv", "bits per byte", 2.5, 2.4, 2.6, bound=True)


def test_a_comparison_asks_what_its_parts_ask() -> None:
    own = {"kind": "compare", "table": "a.csv", "texts": 50, "texts_key": "9", "perplexity": 8.0, "target": "stars"}
    rows = [classified("1", 0.5, priors="uniform"), {**own, "accuracy": 0.5, "accuracy_key": "1"}]
    assert [figure[:3] for figure in latest_measurements(rows)] == [
        ("a.csv", "accuracy of stars", 0.5),
        ("a.csv", "perplexity", 8.0),
    ]


def test_the_last_gains_of_each_table_and_baseline() -> None:
    first, second = [{"value": "1", "perplexity": 5.0}], [{"value": "1", "perplexity": 4.0}]
    rows = [
        {**evaluated("a.csv", "1", 9.0, over=None, gain=0.1), "by": {"stars": first}},
        {**evaluated("a.csv", "1", 9.0, over="ngram", gain=0.2), "by": {"stars": first}},
        {**evaluated("b.csv", "2", 7.0, over=None, gain=0.3), "by": {"stars": first, "city": first}},
        {**evaluated("a.csv", "1", 9.0, over="ngram", gain=0.4), "by": {"stars": second}},
        evaluated("a.csv", "1", 9.1),
    ]
    assert [tuple(found) for found in latest_gains(rows)] == [
        ("a.csv", "stars", None, first),
        ("a.csv", "stars", "ngram", second),
        ("b.csv", "stars", None, first),
        ("b.csv", "city", None, first),
    ]
    shown = saved_results.latest_evaluation(rows)
    assert (shown["table"], shown["perplexity"], shown["gain"], shown["over"]) == ("a.csv", 9.1, 0.4, "ngram")
    assert saved_results.latest_evaluation(rows[:3])["gain"] == 0.3
    assert saved_results.latest_evaluation([]) == {}

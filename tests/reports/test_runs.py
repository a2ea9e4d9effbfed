"""The page of runs: its figures, charts and tables match the results, and only comparable results are compared."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.evaluation.explaining.token_evidence import most_shifted_tokens
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.text_figures import save_result
from factorcell.io import files
from factorcell.reports.runs import figures_on, most_frequent_ids, read_model, report_page, run_report
from factorcell.runs.run import Run
from factorcell.training.fit import train_run
from tests.pages import Page, requests
from tests.reports.examples import GAIN, HOSTILE, evaluation, gain, two_runs
from tests.small_runs import ROWS, make_run

BASELINE = "gain_over_baseline"


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    """Return a table and copies of it with an empty column, by name."""
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("test", "no-city", "no-stars")}
    for name, path in paths.items():
        files.write_rows(path, [{**row, name.removeprefix("no-"): None} for row in ROWS])
    return paths


def evaluate_and_save(run: Run, table: Path, *by: str) -> dict[str, Any]:
    """Evaluate a run and save the result, as the command `evaluate` does; return the figures."""
    result = evaluate(run, table, by=by)
    assert save_result(run, result.result_row(run, table), result.figures) is None
    return result.row


def save_run(folder: Path, **model: Any) -> Run:
    run = make_run(folder, **model)
    run.save_weights({})
    return run


def test_the_page_is_valid_escaped_and_loads_nothing() -> None:
    content = run_report(two_runs())
    page = Page(content)
    assert requests(page, content) == []
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {str(a.get("xlink:href") or a.get("href"))[1:] for a in page.attributes_of("use")}
    assert links | set(re.findall(r"url\(#([^)]*)\)", content)) <= ids
    assert not page.attributes_of("script")
    assert f"{HOSTILE} stopped." in page.texts["p"]


def test_the_page_warns_about_repeated_development_texts(tmp_path: Path) -> None:
    rows = [{"text": f"room {number}", "city": "AB"[number % 2]} for number in range(60)]
    options: dict[str, Any] = {"tokenizer": "char", "epochs": 0.1, "hidden_size": 8, "embedding_size": 4}
    config = Config.of(**options, context=("city",), min_count=1, min_context_count=1)
    new_rows = [{**row, "text": f"{row['text']} moor"} for row in rows[30:]]
    for name, dev, is_reported in (("repeated", rows[30:], True), ("new", new_rows, False)):
        train_run(rows, dev, config, tmp_path / name)
        content = report_page([tmp_path / name])
        assert ("of the development texts also occur in the training table" in content) == is_reported


def test_the_page_of_a_run_shows_pictures_first() -> None:
    content = run_report(two_runs()[1:])
    page = Page(content)
    assert list(page.figures.items())[:2] == [("perplexity per word", "72.00"), ("accuracy", "0.8500")]
    assert page.charts == [
        "Gain of each column alone over an unknown context, %, development texts",
        "Gain over an unknown context (same model) by city, %, test.csv",
        "rating=5, nats",
        "rating=1, nats",
        "Perplexity on development texts by minutes",
        "Predicted rating, test.csv (model)",
    ]
    assert content.rindex("<svg") < content.index("<table")
    accuracy = ["test.csv", "accuracy of rating (model)", "0.8500, majority class 0.5000"]
    assert accuracy in [row[1:] for row in page.rows]
    assert ["1", "10", "0.888", "0.800", "0.840", "0.900"] in page.rows
    assert [f"{HOSTILE} 0", "50", "70.00", "+10.0% [+7.0, +13.0]"] in page.rows


def test_the_gains_of_the_compared_result_are_key_figures() -> None:
    _, adapted = two_runs()
    result = evaluation(72.0, bits_per_byte=1.25, **gain(0.21, 0.01))
    page = Page(run_report([{**adapted, "results": [result, adapted["results"][1]]}]))
    assert page.figures == {
        "perplexity per word": "72.00",
        "gain over an unknown context (same model)": "+21.0% [+20.0, +22.0]",
        "bits per byte": "1.250",
        "accuracy": "0.8500",
    }


def test_gains_by_column_need_known_users() -> None:
    _, adapted = two_runs()
    gains = {**adapted["gains"], "only_unknown_users": True}
    assert "Gain of each column" not in run_report([{**adapted, "gains": gains}])


def test_the_report_compares_runs() -> None:
    page = Page(run_report(two_runs()))
    assert page.charts[0] == "Gain over hotels unadapted, %"
    assert [chart for chart in page.charts if chart.startswith("hotels FactorCell: ")] == [
        "hotels FactorCell: gain of each column alone over an unknown context, %, development texts",
        "hotels FactorCell: gain over an unknown context (same model) by city, %, test.csv",
        "hotels FactorCell: predicted rating, test.csv (model)",
    ]
    rows = {row[0]: row[1:] for row in page.rows[1:3]}
    assert rows["hotels unadapted"][:4] == ["80.12", "–", "–", "70.00"]
    assert rows["hotels FactorCell"][:4] == ["72.00*", "+10.1% [+10.1, +10.1]", "0.8500", "63.00"]
    best = [attributes for attributes in page.attributes_of("td") if "best" in str(attributes.get("class"))]
    assert len(best) == 1, "63.00 is lower than 70.00, but on texts that cannot be compared"
    assert [row[0] for row in page.rows if row[0].startswith("model.")] == ["model.adapt"], "equal options are left out"


def test_the_report_shows_runs_without_results() -> None:
    page = Page(run_report([{"folder": "runs/a", "title": "a", "config": {}, "is_adapted": False, "results": []}]))
    assert (page.charts, page.rows, page.texts["h2"]) == ([], [["model", "folder"], ["a", "runs/a"]], ["Results"])


def test_learning_curves_need_two_evaluations() -> None:
    plain, adapted = ({**run, "log": run["log"][:1]} for run in two_runs())
    assert not [chart for chart in Page(run_report([plain, adapted])).charts if "by minutes" in chart]
    assert [chart for chart in Page(run_report([plain, two_runs()[1]])).charts if "by minutes" in chart]


def test_only_figures_of_one_table_are_compared() -> None:
    plain, adapted = two_runs()
    plain["results"] = [evaluation(50.0, table="development texts", texts=30)]
    page = Page(run_report([plain, adapted, {**adapted, "folder": "runs/c", "title": "other"}]))
    assert "test.csv" in page.texts["p"][1]
    assert [remark for remark in page.texts["li"] if "not compared: hotels unadapted" in remark]
    assert not [title for row in page.rows for title in row if title == "gain over hotels unadapted"]
    assert [row for row in page.rows if "50.00" in row] == [
        ["hotels unadapted", "development texts", "perplexity per word", "50.00"]
    ]


def test_perplexities_of_different_tokens_are_not_compared() -> None:
    plain, adapted = two_runs()
    grapheme = evaluation(2.0, unit="grapheme", figures={})
    char = evaluation(3.0, unit="character", bits_per_byte=2.0, figures={})
    page = Page(run_report([{**plain, "results": [grapheme]}, {**adapted, "results": [char]}]))
    assert [remark for remark in page.texts["li"] if "different tokens" in remark]


def test_a_combination_is_listed_but_not_the_accuracy_of_the_model() -> None:
    plain, adapted = two_runs()
    combined = {**adapted["results"][1], "classifier": "combined", "accuracy": 0.95}
    page = Page(run_report([plain, {**adapted, "results": [*adapted["results"], combined]}]))
    accuracies = [row[2:] for row in page.rows if row[2:3] and row[2].startswith("accuracy of rating")]
    assert accuracies == [
        ["accuracy of rating (model)", "0.8500, majority class 0.5000"],
        ["accuracy of rating (combined)", "0.9500, majority class 0.5000"],
    ]
    comparison = page.rows[:3]
    assert "0.8500" in comparison[2]
    assert not [row for row in comparison if "0.9500" in row]


def test_runs_with_equal_names_are_titled_by_their_folders() -> None:
    plain, adapted = two_runs()
    page = Page(run_report([{**plain, "title": "same"}, {**adapted, "title": "same"}]))
    assert "Gain over runs/a, %" in page.charts


def test_every_gain_has_its_table_and_its_baseline() -> None:
    plain, adapted = two_runs()
    ends = {BASELINE: 0.04, f"{BASELINE}_low": 0.03, f"{BASELINE}_high": 0.05}
    by_unknown, by_baseline = ({"rating": [{"value": "5", "count": 30, key: 0.1}]} for key in (GAIN, BASELINE))
    run = {
        **adapted,
        "gains": {},
        "results": [
            evaluation(72.0, table="ht.csv", by=by_unknown, **{GAIN: 0.21}),
            evaluation(72.0, table="ht.parquet", baseline="plain", gain_over_baseline=0.2),
            evaluation(72.0, table="ht.parquet", baseline="ngram", by=by_baseline, **ends),
        ],
    }
    page = Page(run_report([run]))
    assert page.charts[:2] == [
        "Gain over an unknown context (same model) by rating, %, ht.csv",
        "Gain over ngram by rating, %, ht.parquet",
    ]
    results_of_tables = [row[1:] for row in page.rows]
    assert ["ht.csv", "gain over an unknown context (same model)", "+21.0%"] in results_of_tables
    assert ["ht.parquet", "gain over plain", "+20.0%"] in results_of_tables
    assert ["ht.parquet", "gain over ngram", "+4.0% [+3.0, +5.0]"] in results_of_tables
    both = Page(run_report([{**plain, "results": [evaluation(80.123, table="ht.parquet")]}, run]))
    assert "+10.1% [+10.1, +10.1]" in both.rows[2]


def test_trainings_of_a_model_share_a_row() -> None:
    plain, adapted = two_runs()
    config = {"model": {"adapt": ()}, "training": {"seed": 0, "rank": 1}}
    trained = {"trained": ["a", 100, "train.csv", None], "config": config}
    others = []
    for seed, perplexity in enumerate((70.0, 76.0, 83.0)):
        training = {"config": {**config, "training": {"seed": seed, "rank": 1}}, "folder": f"runs/a-seed-{seed}"}
        others.append({**plain, **trained, **training, "results": [evaluation(perplexity)]})
    page = Page(run_report([*others, {**adapted, "trained": ["a", 100, "train.csv", None]}]))
    mean = f"{(70.0 * 76.0 * 83.0) ** (1 / 3):.2f} ± {np.std([70.0, 76.0, 83.0], ddof=1):.2f}"
    assert page.rows[1][:2] == ["hotels unadapted", mean]
    assert page.rows[1][-1] == "runs/a-seed-0, runs/a-seed-1, runs/a-seed-2"
    assert "not significant" in page.rows[2][2]
    assert not [cell for cell in page.attributes_of("td") if "best" in str(cell.get("class"))]
    assert Page(run_report(others)).rows[1][1] == mean


def test_trainings_with_the_same_seed_have_a_row_each() -> None:
    plain, _ = two_runs()
    trained = {"trained": ["a", 100, "train.csv", None], "config": {"training": {"seed": 0}}}
    trainings = [
        {**plain, **trained, "title": name, "folder": f"runs/{name}", "results": [evaluation(perplexity)]}
        for name, perplexity in (("limited", 70.0), ("repeated", 76.0))
    ]
    page = Page(run_report(trainings))
    assert [row[:2] for row in page.rows[1:3]] == [["limited", "70.00*"], ["repeated", "76.00"]]


def test_the_options_that_differ_between_runs_are_shown(tmp_path: Path) -> None:
    for adapt in (["concat"], ["concat", "factor"]):
        make_run(tmp_path / str(len(adapt)), adapt=adapt).save_weights({})
    page = Page(report_page([tmp_path / "1", tmp_path / "2"]))
    assert ["model.adapt", "concat", "concat, factor"] in page.rows
    assert not [row for row in page.rows if row[0] == "model.rank"]


def test_the_typical_words_of_a_run_are_those_of_its_softmax_bias(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    words = read_model(run.folder, has_words=True)["words"]
    assert [entry["context"] for entry in words] == ["city=Oslo", "city=Nice"], "the most frequent value is the first"
    for entry, city in zip(words, ("Oslo", "Nice"), strict=True):
        assert entry["rows"] == most_shifted_tokens(run, {"city": city}, count=6)
    page = Page(report_page([run.folder]))
    assert [chart for chart in page.charts if chart.startswith("city=")] == ["city=Oslo, nats", "city=Nice, nats"]
    plain, letters = save_run(tmp_path / "plain", output_bias=[]), save_run(tmp_path / "letters", tokenizer="char")
    assert [read_model(other.folder, has_words=True)["words"] for other in (plain, letters)] == [[], []]
    save_run(tmp_path / "users", user="city", context=("stars",))
    assert {entry["context"] for entry in read_model(tmp_path / "users", has_words=True)["words"]} == {
        "stars=5",
        "stars=1",
    }


def test_values_without_typical_words_have_no_chart(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    for parameter in run.model.parameters():
        parameter.data.zero_()  # no context changes a word
    run.save_weights({})
    assert read_model(run.folder, has_words=True)["words"] == []
    assert "Typical words" not in report_page([run.folder])


def test_models_are_compared_on_the_table_of_most_models(tmp_path: Path, tables: dict[str, Path]) -> None:
    adapted, plain = save_run(tmp_path / "adapted"), save_run(tmp_path / "plain", adapt=[], output_bias=[])
    figures = {name: evaluate_and_save(adapted, path) for name, path in tables.items()}
    evaluate_and_save(plain, tables["test"])
    models = [[read_model(run.folder)] for run in (plain, adapted)]
    ids = most_frequent_ids(models)
    assert ids == {"perplexity": ("test.jsonl", None, len(ROWS)), "accuracy": None}
    for name, row in figures.items():
        metrics, texts = figures_on(models[1][0], {**ids, "perplexity": (f"{name}.jsonl", None, len(ROWS))})
        assert metrics["perplexity"] == row["perplexity"] == pytest.approx(np.exp(texts["perplexity"].ratio), rel=1e-9)
    page = Page(report_page([plain.folder, adapted.folder]))
    assert f"{figures['test']['perplexity']:.2f}" in page.rows[2]


def test_the_accuracy_of_a_run_is_not_that_of_a_combination() -> None:
    def classified(classifier: str, accuracy: float, **more: Any) -> dict[str, Any]:
        row = {"kind": "classify", "table": "a.csv", "target": "stars", "texts": 9, "classifier": classifier}
        return {**row, "accuracy": accuracy, "majority": 0.5, "linear_accuracy": 0.8, "figures": {}, **more}

    run: dict[str, Any] = {"folder": "a", "title": "a", "config": {}}
    run["results"] = [classified("model", 0.6), classified("combined", 0.9)]
    metrics, _ = figures_on(run, most_frequent_ids([[run]]))
    assert (metrics["accuracy"], metrics["linear_accuracy"]) == (0.6, 0.8)
    assert most_frequent_ids([[{**run, "results": run["results"][1:]}]]) == {"perplexity": None, "accuracy": None}

"""Baselines of the TACL paper: the same texts and candidates as the models, compared with plain computations."""

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import corpora
import measures
import study
import tacl
import tacl_baselines
import tacl_beyond
from classifiers import NaiveBayes
from factorcell.config import Config
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.bayes_rule import Classification
from factorcell.evaluation.classification import classify
from factorcell.evaluation.text_figures import TextSums
from factorcell.io import files, lock
from factorcell.ngram.ngram import NGram
from factorcell.runs.run import Run
from factorcell.training.mixture import MixedModels
from separate import separate_models
from tests.small_runs import make_run

WORDS = {"world": "a war of words", "sport": "the game of two", "trade": "a share of the war"}


def texts(count: int) -> list[dict[str, str]]:
    """Return sentences of three sections in turn, with a word for their number."""
    return [{"text": f"{WORDS[name]} {n % 3}", "section": name} for n in range(count) for name in WORDS]


RECIPE = """
[data]
context = ["section"]
min_context_count = 10
[tokenizer]
kind = "space"
min_count = 1
[backbone]
hidden_size = 6
[model]
embedding_size = 6
context_size = 2
variable_size = 2
rank = 2
[training]
epochs = 2
batch_tokens = 60
learning_rate = 2e-2
evaluations = 1
"""


@pytest.fixture(scope="module")
def results_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of tiny baselines on three sections, and of some models of the paper."""
    folder = tmp_path_factory.mktemp("baselines")
    (folder / "agnews_words").mkdir()
    (folder / "recipe.toml").write_text(RECIPE)
    for part, count in (("train", 30), ("dev", 10), ("test", 12)):
        pq.write_table(pa.Table.from_pylist(texts(count)), folder / "agnews_words" / f"{part}.parquet")
    baselines_of_set, models_of_set = tacl_baselines.EXPERIMENTS["agnews"], tacl.EXPERIMENTS["agnews"]
    beyond = tacl_beyond.EXPERIMENTS["agnews"]
    for experiment, seeds, only in (
        (baselines_of_set, [0, 1], ["ngram", "bayes", "linear"]),
        (baselines_of_set, [0], ["mixture", "separate", "prefix"]),
        (models_of_set, [0], ["unadapted", "concatcell", "factorcell"]),
        (beyond, [0, 1], None),
    ):
        options: dict[str, Any] = {"data": folder, "out": folder / "out", "results": None, "trial": False}
        arguments = Namespace(**options, only=only, seeds=seeds, threads=1, jobs=1)
        assert study.main(replace(experiment, recipe=str(folder / "recipe.toml")), arguments, ["x.py"]) == 0
    return folder / "out"


def rows_by_name_and_seed(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["row"], row["seed"]): row for row in files.read_rows(folder / "tacl_baselines_agnews.jsonl")}


def test_baselines_and_models_are_measured_on_the_same_texts(results_folder: Path) -> None:
    """Their figures have the same key, so differences have intervals."""
    rows_by_name = rows_by_name_and_seed(results_folder)
    names = ["ngram", "bayes", "linear", "mixture", "separate", "prefix"]
    assert set(rows_by_name) == {(name, 0) for name in names} | {("linear", 1)}
    model_sums = {row["row"]: row for row in files.read_rows(results_folder / "tacl_agnews.jsonl")}["concatcell"][
        "sums"
    ]
    for row in rows_by_name.values():
        for name, sums in row["sums"].items():
            assert (sums["key"], sums["below"]) == (model_sums[name]["key"], model_sums[name]["below"])
            ratio = study.grouped_figures(row)[name].ratio
            assert (ratio if name.endswith("accuracy") else math.exp(ratio)) == pytest.approx(row[name], rel=1e-6)
    assert set(rows_by_name["ngram", 0]["sums"]) == {"perplexity", "perplexity_known"}
    assert set(rows_by_name["bayes", 0]["sums"]) == {"accuracy", "classifier_accuracy"}
    assert set(rows_by_name["separate", 0]["sums"]) == set(rows_by_name["mixture", 0]["sums"]) == set(model_sums)


def test_classifiers_are_calibrated_on_dev(results_folder: Path) -> None:
    """Naive Bayes has the prior of training; both have a temperature fitted to dev."""
    rows_by_name, texts = (
        rows_by_name_and_seed(results_folder),
        {part: results_folder / "tables" / f"agnews_words-{part}-1.parquet" for part in corpora.PARTS},
    )
    assert [rows_by_name[name, 0].get("exact") for name in ("bayes", "ngram", "linear")] == [True, True, None]
    config = Config.from_dict(rows_by_name["linear", 1]["config"])
    train, dev = linear_classifier.read_train_and_test(texts["train"], texts["dev"], "section", config)
    _, test = linear_classifier.read_train_and_test(texts["train"], texts["test"], "section", config)
    linear, linear_dev = (linear_classifier.classify_with_linear_baseline(train, part) for part in (test, dev))
    linear_metrics = linear.at_temperature(linear_dev.fitted_temperature()).metrics()
    counts = train.schema.categories[0].counts_by_value
    by_rule, held_out = (NaiveBayes(train)(part).with_priors(counts) for part in (test, dev))
    bayes_metrics = by_rule.at_temperature(held_out.fitted_temperature()).metrics()
    for row, metrics in ((rows_by_name["linear", 1], linear_metrics), (rows_by_name["bayes", 0], bayes_metrics)):
        for name in ("accuracy", "calibration_error", "value_nats", "temperature"):
            assert row[f"classifier_{name}"] == pytest.approx(metrics[name], rel=1e-5)
    assert rows_by_name["linear", 1]["classifier_dev_accuracy"] == linear_dev.metrics()["accuracy"]


def test_classifiers_are_not_calibrated_without_calibration_texts(results_folder: Path) -> None:
    """They can be trained on other texts than the models."""
    texts = {part: results_folder / "tables" / f"agnews_words-{part}-1.parquet" for part in ("train", "test")}
    tables, row = {"train": texts["train"], "judged": texts["test"]}, rows_by_name_and_seed(results_folder)["linear", 1]
    config, [measure] = (
        Config.from_dict(row["config"]),
        [tacl_baselines.classifiers("section", "word")["linear"].measure],
    )
    measurement = measure(config, tables, results_folder)
    assert measurement.row["accuracy"] == row["accuracy"]
    assert set(measurement.figures) == {"accuracy"}
    few = results_folder / "few.parquet"
    pq.write_table(
        pa.Table.from_pylist([text for text in texts_of(tables["train"]) if text["section"] != "world"]), few
    )
    assert measure(config, {**tables, "labelled_train": few}, results_folder).row["candidates"] == 2


def texts_of(path: Path) -> list[dict[str, str]]:
    result: list[dict[str, str]] = corpora.read(path).to_pylist()
    return result


def test_models_per_value_classify_by_likelihood(results_folder: Path) -> None:
    """The mixture uses the weights of each value."""
    rows_by_name, table = (
        rows_by_name_and_seed(results_folder),
        results_folder / "tables" / "agnews_words-test-1.parquet",
    )
    separate = MixedModels.open(results_folder / "tacl_baselines_agnews" / "separate" / "0")
    mixture = MixedModels.open(results_folder / "tacl_baselines_agnews" / "mixture" / "0")
    truth = corpora.read(table)["section"].to_pylist()
    values = separate.schema.variable("section").values
    runs = separate_models(separate)
    shared = runs[0].prepare(table)
    texts = [{**row, "section": ""} for row in corpora.read(table).to_pylist()]
    nats = [run.score(texts, unknown="group").tolist() for run in runs]
    best = [values[1 + place] for place in np.array(nats[1:]).argmin(0)]
    assert rows_by_name["separate", 0]["accuracy"] == np.mean(
        [scored == other for scored, other in zip(best, truth, strict=True)]
    )
    corpus = separate.prepare(table)
    per_target = np.array([run.nats(shared) for run in runs], dtype=float)
    begins = np.append(0, np.cumsum(corpus.lengths)[:-1])
    scores = []
    for number, value in enumerate(values[1:], 1):
        value_weight, shared_weight = mixture.weights[1 + mixture.values.index(value)]
        mixed = np.log(value_weight * np.exp(-per_target[number]) + shared_weight * np.exp(-per_target[0]))
        scores.append(np.add.reduceat(mixed, begins))
    best = [values[1 + place] for place in np.array(scores).argmax(0)]
    assert rows_by_name["mixture", 0]["accuracy"] == np.mean(
        [scored == other for scored, other in zip(best, truth, strict=True)]
    )


def test_the_ngram_order_is_the_best_on_dev(results_folder: Path, tmp_path: Path) -> None:
    texts = results_folder / "tables"
    row = rows_by_name_and_seed(results_folder)["ngram", 0]
    config = Config.from_dict(row["config"])
    perplexities = {}
    for order in tacl_baselines.ORDERS:
        model = NGram.fit(texts / "agnews_words-train-1.parquet", config, tmp_path / str(order), order=order)
        perplexities[order] = float(np.exp(model.nats(model.prepare(texts / "agnews_words-dev-1.parquet")).mean()))
    assert row["dev"]["perplexity"] == pytest.approx(min(perplexities.values()))
    assert perplexities[row["order"]] == pytest.approx(min(perplexities.values()))


def test_rare_values_are_not_measured(results_folder: Path) -> None:
    """A trial may have fewer than two frequent values."""
    texts = {"labelled_train": results_folder / "tables" / "agnews_words-train-1.parquet"}
    for least, is_measured in ((30, True), (31, False)):
        config = Config.of(context=["section"], min_context_count=least)
        measurement = tacl_baselines.measure_if_frequent(
            config, texts, results_folder, "section", lambda *_: study.Measurement({"told": True})
        )
        assert bool(measurement.row) == is_measured


def test_only_candidate_values_are_predicted(results_folder: Path) -> None:
    """Texts of other values are not judged."""
    log = np.log([[0.6, 0.1, 0.3], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.4, 0.3, 0.3]])
    classification = Classification(("x", "y", "z"), log, np.array([2, 1, 1, 0]))
    run = MixedModels.open(results_folder / "tacl_baselines_agnews" / "separate" / "0")
    corpus = run.prepare(texts(4)[:4])
    restricted = tacl_baselines.TargetValues("c", ["z", "y"], ("c",)).restrict(classification, corpus)
    measurement = tacl_baselines.measure_accuracy(restricted)
    assert measurement.figures["accuracy"].numerator.tolist() == [1, 1, 0, 0]
    assert measurement.figures["accuracy"].denominator.tolist() == [1, 1, 1, 0]
    assert (measurement.row["accuracy"], measurement.row["judged"], measurement.row["candidates"]) == (
        pytest.approx(2 / 3),
        3,
        2,
    )


def test_tweets_get_their_nearest_city(tmp_path: Path) -> None:
    """Distances follow great circles; tweets far from all cities have none."""
    random = np.random.default_rng(0)
    places = np.column_stack([random.uniform(25, 49, 400), random.uniform(-125, -67, 400)])
    table = pa.table({"text": ["x"] * 400, "lat": places[:, 0], "lon": places[:, 1]})
    path, cities = corpora.write_table(tmp_path / "t.parquet", table), measures.Cities("us_cities.csv")
    labels = tacl_baselines.with_city(path, cities)[tacl_baselines.CITY].to_pylist()

    def vector(lat: float, lon: float) -> Any:
        lat, lon = math.radians(lat), math.radians(lon)
        return np.array([math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)])

    for place, city in zip(places, labels, strict=True):
        distances = {
            name: 6371.0088 * math.acos(float(vector(*place) @ vector(coordinates["lat"], coordinates["lon"])))
            for name, coordinates in cities.cities().items()
        }
        nearest = min(distances, key=lambda name: distances[name])
        assert city == (nearest if distances[nearest] <= measures.MAX_DISTANCE else None)
    assert 0 < labels.count(None) < 400


def test_rows_wait_for_the_runs_they_need(tmp_path: Path) -> None:
    job = study.Job(tacl_baselines.EXPERIMENTS["agnews"], tmp_path, tmp_path, tmp_path, (), 1, 2, False, ())
    separate, mixture, other = (study.Training(*pair) for pair in (("separate", 0), ("mixture", 0), ("prefix", 1)))
    assert job.next_ready([mixture, separate], []) == separate
    assert job.next_ready([mixture], {separate: None}) is None
    assert job.next_ready([mixture, other], {separate: None}) == other
    assert job.next_ready([mixture], []) == mixture
    assert job.next_ready([], []) is None


# ---- mixtures and ensembles ----


def test_ensembles_average_probabilities(results_folder: Path) -> None:
    row = next(row for row in files.read_rows(results_folder / "tacl_beyond_agnews.jsonl") if row["row"] == "ensemble")
    runs = [Run.open(results_folder / "tacl_agnews" / "factorcell" / str(seed)) for seed in study.SEEDS]
    table = corpora.read(results_folder / "tables" / "agnews_words-test-1.parquet").to_pylist()
    values = runs[0].schema.variable("section").values[1:]

    def texts(value: str) -> Any:
        corpora = [run.prepare([{**text_row, "section": value} for text_row in table]) for run in runs]
        nats = [run.nats(corpus).astype(float) for run, corpus in zip(runs, corpora, strict=True)]
        mixed = -np.log(np.mean(np.exp(-np.stack(nats)), axis=0))
        return np.add.reduceat(mixed, np.append(0, np.cumsum(corpora[0].lengths)[:-1]))

    likelihoods = -np.stack([texts(value) for value in values], axis=1)
    truth = [values.index(text["section"]) for text in table]
    true_likelihoods = likelihoods[np.arange(len(table)), truth]
    assert row["perplexity"] == pytest.approx(np.exp(-true_likelihoods.sum() / row["targets"]), rel=1e-5)
    assert row["accuracy"] == np.mean(likelihoods.argmax(1) == truth)
    assert row["weights"] == [pytest.approx(1 / 3)] * 3
    counts = np.array(runs[0].schema.variable("section").counts[1:], dtype=float)
    joint = likelihoods / row["classifier_temperature"] + np.log(counts / counts.sum())
    assert row["classifier_accuracy"] == np.mean(joint.argmax(1) == truth)


def test_mixing_with_ngrams_is_not_worse_on_dev(results_folder: Path) -> None:
    """An ensemble has one row, other mixtures one per seed."""
    rows_by_name = {
        (row["row"], row["seed"]): row for row in files.read_rows(results_folder / "tacl_beyond_agnews.jsonl")
    }
    single = {row["row"]: row for row in files.read_rows(results_folder / "tacl_agnews.jsonl")}["factorcell"]
    assert set(rows_by_name) == {
        *(("with ngram", seed) for seed in (0, 1)),
        *((name, 0) for name in ("ensemble", "ensemble with ngram")),
    }
    assert rows_by_name["with ngram", 0]["dev"]["perplexity"] <= single["dev"]["perplexity"] + 1e-6
    assert (
        rows_by_name["ensemble with ngram", 0]["dev"]["perplexity"]
        <= rows_by_name["ensemble", 0]["dev"]["perplexity"] + 1e-6
    )
    assert sum(rows_by_name["ensemble with ngram", 0]["weights"]) == pytest.approx(1)
    for row in rows_by_name.values():
        assert set(row["sums"]) == {"perplexity", "perplexity_known", "accuracy", "classifier_accuracy"}
        assert row["sums"]["accuracy"]["key"] == single["sums"]["accuracy"]["key"]


def test_new_texts_share_no_eight_consecutive_words(tmp_path: Path) -> None:
    """The gain is measured on new texts only."""
    texts = {
        "train": ["The news of the day is that it rained", "short"],
        "test": ["yes the NEWS of the day is that it", "news of the day is that it rains", "short", "something else"],
    }
    for part, part_texts in texts.items():
        corpora.write_table(tmp_path / f"{part}.parquet", pa.table({"text": part_texts}))
    paths = {part: tmp_path / f"{part}.parquet" for part in texts}
    assert tacl_beyond.is_new_text(paths["train"], paths["test"]).tolist() == [False, True, True, True]
    below = np.array([9.0, 2.0, 3.0, 5.0])
    plain, mixed = (
        study.Measurement({}, {"perplexity_known": TextSums("k", np.array(above), below)})
        for above in ([1.0, 4.0, 6.0, 10.0], [0.0, 3.0, 5.0, 2.0])
    )
    row = tacl_beyond.gain_on_new_texts(plain, mixed, paths).row
    assert row == {"fresh_texts": 3, "fresh_gain": pytest.approx(1 - math.exp(-1))}


def test_a_mixture_of_one_model_classifies_as_classify_does(results_folder: Path) -> None:
    folder = results_folder / "tacl_agnews" / "factorcell" / "0"
    run, table = Run.open(folder), results_folder / "tables" / "agnews_words-test-1.parquet"
    values = run.schema.variable("section").values[1:]
    target_values = tacl_baselines.TargetValues("section", values, ("section", *values))
    single_model = MixedModels(folder, [run])
    classification, expected = target_values.classify(single_model, table), classify(run, table, "section")
    np.testing.assert_allclose(classification.probabilities, expected.probabilities, rtol=1e-4)
    assert classification.key == expected.key


def test_contexts_replace_only_variables_of_their_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ("city", "lat:number"))
    rows_by_name_and_seed = [{"text": "sea 1", "city": "x", "lat": 50.0}, {"text": "sun 2", "city": "x", "lat": 51.0}]
    corpus = run.prepare(rows_by_name_and_seed, unknown="group")
    changed = tacl_baselines.with_context(corpus, {"lat": 48.9, "lon": 2.4})
    expected = run.prepare([{**row, "lat": 48.9} for row in rows_by_name_and_seed], unknown="group")
    np.testing.assert_array_equal(changed.numbers, expected.numbers)
    np.testing.assert_array_equal(changed.categories, corpus.categories)
    assert corpus.numbers.tolist() == [[50.0], [51.0]]


def test_a_trained_run_opens_while_it_is_locked(tmp_path: Path) -> None:
    """Two rows of a script may need the same FactorCell."""
    run = make_run(tmp_path / "run", ("city",))
    run.save_weights({})
    files.write_json(run.folder / "training.json", {})
    with lock.training_lock(run.folder):
        opened = tacl_beyond.factorcell(run.config, {}, run.folder)
    assert opened.folder == run.folder

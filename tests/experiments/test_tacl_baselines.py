"""What the models of the TACL paper are held against: the same texts, words and questions, counted out by hand."""

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
from factorcell import files, lock
from factorcell.config import Config
from factorcell.evaluation import baselines
from factorcell.evaluation.bayes_rule import Classification
from factorcell.evaluation.classification import classify
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.text_figures import TextSums
from factorcell.model.run import Run
from factorcell.training.mixture import Mixture
from factorcell.training.per_value import SeparateRuns
from tests.small_runs import make_run

WORDS = {"world": "a war of words", "sport": "the game of two", "trade": "a share of the war"}


def texts(count: int) -> list[dict[str, str]]:
    """Sentences of three sections in turn, with a word by their number."""
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
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the rows of tiny baselines on three sections, and of the first and third of the paper's models."""
    folder = tmp_path_factory.mktemp("baselines")
    (folder / "agnews_words").mkdir()
    (folder / "recipe.toml").write_text(RECIPE)
    for part, count in (("train", 30), ("dev", 10), ("test", 12)):
        pq.write_table(pa.Table.from_pylist(texts(count)), folder / "agnews_words" / f"{part}.parquet")
    mine, theirs = tacl_baselines.EXPERIMENTS["agnews"], tacl.EXPERIMENTS["agnews"]
    beyond = tacl_beyond.EXPERIMENTS["agnews"]
    for experiment, seeds, only in (
        (mine, [0, 1], ["ngram", "bayes", "linear"]),
        (mine, [0], ["mixture", "separate", "prefix"]),
        (theirs, [0], ["unadapted", "concatcell", "factorcell"]),
        (beyond, [0, 1], None),
    ):
        options: dict[str, Any] = {"data": folder, "out": folder / "out", "results": None, "trial": False}
        given = Namespace(**options, only=only, seeds=seeds, threads=1, jobs=1)
        assert study.main(replace(experiment, recipe=str(folder / "recipe.toml")), given, ["x.py"]) == 0
    return folder / "out"


def rows(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What is finished, by row and seed."""
    return {(row["row"], row["seed"]): row for row in files.read_rows(folder / "tacl_baselines_agnews.jsonl")}


def test_all_are_measured_on_the_texts_of_the_models(made: Path) -> None:
    """Figures have the key of ours, so that differences have intervals; without chance there is one seed."""
    found = rows(made)
    names = ["ngram", "bayes", "linear", "mixture", "separate", "prefix"]
    assert set(found) == {(name, 0) for name in names} | {("linear", 1)}
    ours = {row["row"]: row for row in files.read_rows(made / "tacl_agnews.jsonl")}["concatcell"]["sums"]
    for row in found.values():
        for name, sums in row["sums"].items():
            assert (sums["key"], sums["below"]) == (ours[name]["key"], ours[name]["below"])
            ratio = study.grouped_figures(row)[name].ratio
            assert (ratio if name.endswith("accuracy") else math.exp(ratio)) == pytest.approx(row[name], rel=1e-6)
    assert set(found["ngram", 0]["sums"]) == {"perplexity", "perplexity_known"}
    assert set(found["bayes", 0]["sums"]) == {"accuracy", "classifier_accuracy"}
    assert set(found["separate", 0]["sums"]) == set(found["mixture", 0]["sums"]) == set(ours)


def test_classifiers_are_as_sure_as_suits_dev(made: Path) -> None:
    """Naive Bayes by the priors of training, the linear model as it is; both at a temperature of the texts of dev."""
    found, texts = rows(made), {part: made / "tables" / f"agnews_words-{part}-1.parquet" for part in corpora.PARTS}
    assert [found[name, 0].get("exact") for name in ("bayes", "ngram", "linear")] == [True, True, None]
    config = Config.from_dict(found["linear", 1]["config"])
    train, dev = baselines.read_train_and_test(texts["train"], texts["dev"], "section", config)
    _, test = baselines.read_train_and_test(texts["train"], texts["test"], "section", config)
    model = baselines.LinearClassifier(train, seed=1)
    warm = model(test).at_temperature(model(dev).fitted_temperature()).metrics()
    priors = {"priors": "training"}
    by_rule, held = (baselines.naive_bayes(train, part, **priors)[0] for part in (test, dev))
    even = by_rule.at_temperature(held.fitted_temperature()).metrics()
    for row, metrics in ((found["linear", 1], warm), (found["bayes", 0], even)):
        for name in ("accuracy", "calibration_error", "value_nats", "temperature"):
            assert row[f"classifier_{name}"] == pytest.approx(metrics[name], rel=1e-5)
    assert found["linear", 1]["classifier_dev_accuracy"] == model(dev).metrics()["accuracy"]


def test_without_texts_held_a_classifier_is_as_it_is(made: Path) -> None:
    """No temperature, and the same answers; who is judged may be told by other texts than the models learn from."""
    texts = {part: made / "tables" / f"agnews_words-{part}-1.parquet" for part in ("train", "test")}
    whole, row = {"train": texts["train"], "judged": texts["test"]}, rows(made)["linear", 1]
    config, [tells] = Config.from_dict(row["config"]), [tacl_baselines.classifiers("section", "word")["linear"].measure]
    found = tells(config, whole, made)
    assert found.row["accuracy"] == row["accuracy"]
    assert set(found.figures) == {"accuracy"}
    few = made / "few.parquet"
    pq.write_table(pa.Table.from_pylist([one for one in texts_of(whole["train"]) if one["section"] != "world"]), few)
    assert tells(config, {**whole, "labelled_train": few}, made).row["candidates"] == 2


def texts_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    found: list[dict[str, str]] = corpora.read(path).to_pylist()
    return found


def test_a_model_of_each_value_tells_by_its_own_likelihood(made: Path) -> None:
    """The value whose run gives a text the fewest nats, and of the mixture by the weights of that value."""
    found, table = rows(made), made / "tables" / "agnews_words-test-1.parquet"
    separate = SeparateRuns.open(made / "tacl_baselines_agnews" / "separate" / "0")
    mixture = Mixture.open(made / "tacl_baselines_agnews" / "mixture" / "0")
    truth = corpora.read(table)["section"].to_pylist()
    values = separate.schema.variable("section").values
    runs = [separate.runs[number] for number in range(len(values))]
    texts = [{**row, "section": ""} for row in corpora.read(table).to_pylist()]
    nats = [[one["nats"] for one in run.score(texts, unknown="group")] for run in runs]
    best = [values[1 + place] for place in np.array(nats[1:]).argmin(0)]
    assert found["separate", 0]["accuracy"] == np.mean([one == other for one, other in zip(best, truth, strict=True)])
    assert mixture.variable is not None
    corpus = separate.prepare(table)
    per_target = np.array([run.nats(corpus) for run in runs], dtype=float)
    begins = np.append(0, np.cumsum(corpus.lengths)[:-1])
    scores = []
    for number, value in enumerate(values[1:], 1):
        own, shared = mixture.weights[mixture.variable.values.index(value)]
        mixed = np.log(own * np.exp(-per_target[number]) + shared * np.exp(-per_target[0]))
        scores.append(np.add.reduceat(mixed, begins))
    best = [values[1 + place] for place in np.array(scores).argmax(0)]
    assert found["mixture", 0]["accuracy"] == np.mean([one == other for one, other in zip(best, truth, strict=True)])


def test_the_order_suits_dev(made: Path, tmp_path: Path) -> None:
    """No other order has a lower perplexity there."""
    texts = made / "tables"
    row = rows(made)["ngram", 0]
    config = Config.from_dict(row["config"])
    every = {}
    for order in tacl_baselines.ORDERS:
        model = NGram.fit(texts / "agnews_words-train-1.parquet", config, tmp_path / str(order), order=order)
        every[order] = float(np.exp(model.nats(model.prepare(texts / "agnews_words-dev-1.parquet")).mean()))
    assert row["dev"]["perplexity"] == pytest.approx(min(every.values()))
    assert every[row["order"]] == pytest.approx(min(every.values()))


def test_nothing_is_said_of_rare_values(made: Path) -> None:
    """Where one value alone is frequent enough, as in a trial, there is nothing to tell apart."""
    texts = {"labelled_train": made / "tables" / "agnews_words-train-1.parquet"}
    for least, told in ((30, True), (31, False)):
        config = Config.of(context=["section"], min_context_count=least)
        found = tacl_baselines.unless_rare(config, texts, made, "section", lambda *_: study.Measured({"told": True}))
        assert bool(found.row) == told


def test_only_values_that_are_asked_for_are_told(made: Path) -> None:
    """A value that is likelier but not asked for is no answer, and texts of it are not judged."""
    log = np.log([[0.6, 0.1, 0.3], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.4, 0.3, 0.3]])
    found = Classification(("x", "y", "z"), log, log, np.array([2, 1, 1, 0]), np.zeros(4, dtype=bool))
    run = SeparateRuns.open(made / "tacl_baselines_agnews" / "separate" / "0")
    corpus = run.prepare(texts(4)[:4])
    among = tacl_baselines.TargetValues("c", ["z", "y"], ("c",)).among(found, corpus)
    told = tacl_baselines.accuracy_of(among)
    assert told.figures["accuracy"].numerator.tolist() == [1, 1, 0, 0]
    assert told.figures["accuracy"].denominator.tolist() == [1, 1, 1, 0]
    assert (told.row["accuracy"], told.row["judged"], told.row["candidates"]) == (pytest.approx(2 / 3), 3, 2)


def test_tweets_have_the_nearest_city(tmp_path: Path) -> None:
    """By great circles from vectors in space; none where all are farther than those that models are asked for."""
    random = np.random.default_rng(0)
    places = np.column_stack([random.uniform(25, 49, 400), random.uniform(-125, -67, 400)])
    table = pa.table({"text": ["x"] * 400, "lat": places[:, 0], "lon": places[:, 1]})
    path, cities = corpora.write_table(tmp_path / "t.parquet", table), measures.Cities("us_cities.csv")
    found = tacl_baselines.with_city(path, cities)[tacl_baselines.CITY].to_pylist()

    def vector(lat: float, lon: float) -> Any:
        lat, lon = math.radians(lat), math.radians(lon)
        return np.array([math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)])

    for place, city in zip(places, found, strict=True):
        away = {
            name: 6371.0088 * math.acos(float(vector(*place) @ vector(one["lat"], one["lon"])))
            for name, one in cities.cities().items()
        }
        nearest = min(away, key=lambda name: away[name])
        assert city == (nearest if away[nearest] <= measures.WITHIN else None)
    assert 0 < found.count(None) < 400


def test_what_others_train_is_waited_for(tmp_path: Path) -> None:
    """A mixture begins when the separate models are trained, and at once where nobody trains them."""
    job = study.Job(tacl_baselines.EXPERIMENTS["agnews"], tmp_path, tmp_path, tmp_path, (), 1, 2, False, ())
    separate, mixture, other = (study.Training(*one) for one in (("separate", 0), ("mixture", 0), ("prefix", 1)))
    assert job.ready([mixture, separate], []) == separate
    assert job.ready([mixture], {separate: None}) is None
    assert job.ready([mixture, other], {separate: None}) == other
    assert job.ready([mixture], []) == mixture
    assert job.ready([], []) is None


# ---- beyond a single model ----


def test_an_ensemble_is_the_mean_of_its_probabilities(made: Path) -> None:
    """Of all three seeds, by every value that a text might have; the prior is that of training."""
    row = next(row for row in files.read_rows(made / "tacl_beyond_agnews.jsonl") if row["row"] == "ensemble")
    runs = [Run.open(made / "tacl_agnews" / "factorcell" / str(seed)) for seed in study.SEEDS]
    table = corpora.read(made / "tables" / "agnews_words-test-1.parquet").to_pylist()
    values = runs[0].schema.variable("section").values[1:]

    def texts(value: str) -> Any:
        corpora = [run.prepare([{**one, "section": value} for one in table]) for run in runs]
        nats = [run.nats(corpus).astype(float) for run, corpus in zip(runs, corpora, strict=True)]
        mixed = -np.log(np.mean(np.exp(-np.stack(nats)), axis=0))
        return np.add.reduceat(mixed, np.append(0, np.cumsum(corpora[0].lengths)[:-1]))

    likelihoods = -np.stack([texts(value) for value in values], axis=1)
    truth = [values.index(one["section"]) for one in table]
    own = likelihoods[np.arange(len(table)), truth]
    assert row["perplexity"] == pytest.approx(np.exp(-own.sum() / row["targets"]), rel=1e-5)
    assert row["accuracy"] == np.mean(likelihoods.argmax(1) == truth)
    assert row["weights"] == [pytest.approx(1 / 3)] * 3
    counts = np.array(runs[0].schema.variable("section").counts[1:], dtype=float)
    joint = likelihoods / row["classifier_temperature"] + np.log(counts / counts.sum())
    assert row["classifier_accuracy"] == np.mean(joint.argmax(1) == truth)


def test_an_ngram_model_beside_it_is_no_worse_on_dev(made: Path) -> None:
    """Of the weights that there are none suits dev better; an ensemble has one row, others one for each seed."""
    found = {(row["row"], row["seed"]): row for row in files.read_rows(made / "tacl_beyond_agnews.jsonl")}
    single = {row["row"]: row for row in files.read_rows(made / "tacl_agnews.jsonl")}["factorcell"]
    assert set(found) == {
        *(("with ngram", seed) for seed in (0, 1)),
        *((name, 0) for name in ("ensemble", "ensemble with ngram")),
    }
    assert found["with ngram", 0]["dev"]["perplexity"] <= single["dev"]["perplexity"] + 1e-6
    assert found["ensemble with ngram", 0]["dev"]["perplexity"] <= found["ensemble", 0]["dev"]["perplexity"] + 1e-6
    assert sum(found["ensemble with ngram", 0]["weights"]) == pytest.approx(1)
    for row in found.values():
        assert set(row["sums"]) == {"perplexity", "perplexity_known", "accuracy", "classifier_accuracy"}
        assert row["sums"]["accuracy"]["key"] == single["sums"]["accuracy"]["key"]


def test_texts_are_fresh_that_share_no_words_in_a_row(tmp_path: Path) -> None:
    """Eight of them; fewer are nobody's. What a scorer gains is that of fresh texts alone."""
    texts = {
        "train": ["The news of the day is that it rained", "short"],
        "test": ["yes the NEWS of the day is that it", "news of the day is that it rains", "short", "something else"],
    }
    for part, some in texts.items():
        corpora.write_table(tmp_path / f"{part}.parquet", pa.table({"text": some}))
    paths = {part: tmp_path / f"{part}.parquet" for part in texts}
    assert tacl_beyond.fresh(paths["train"], paths["test"]).tolist() == [False, True, True, True]
    below = np.array([9.0, 2.0, 3.0, 5.0])
    plain, made = (
        study.Measured({}, {"perplexity_known": TextSums("k", np.array(above), below)})
        for above in ([1.0, 4.0, 6.0, 10.0], [0.0, 3.0, 5.0, 2.0])
    )
    found = tacl_beyond.on_fresh(plain, made, paths).row
    assert found == {"fresh_texts": 3, "fresh_gain": pytest.approx(1 - math.exp(-1))}


def test_one_model_tells_as_classify_does(made: Path) -> None:
    """By whatever scorer: values of a category, and points of numbers."""
    folder = made / "tacl_agnews" / "factorcell" / "0"
    run, table = Run.open(folder), made / "tables" / "agnews_words-test-1.parquet"
    values = run.schema.variable("section").values[1:]
    asked = tacl_baselines.TargetValues("section", values, ("section", *values))
    one = Mixture(folder, [run], None, np.ones((1, 1)))
    found, expected = asked.by_rule(one, table), classify(run, table, "section")
    np.testing.assert_allclose(found.probabilities, expected.probabilities, rtol=1e-4)
    assert found.key == expected.key


def test_numbers_are_put_in_as_they_are(tmp_path: Path) -> None:
    """Into every variable of that name, others alone."""
    run = make_run(tmp_path / "r", ("city", "lat:number"))
    rows = [{"text": "sea 1", "city": "x", "lat": 50.0}, {"text": "sun 2", "city": "x", "lat": 51.0}]
    corpus = run.prepare(rows, unknown="group")
    here = tacl_baselines.with_context(corpus, {"lat": 48.9, "lon": 2.4})
    expected = run.prepare([{**row, "lat": 48.9} for row in rows], unknown="group")
    np.testing.assert_array_equal(here.numbers, expected.numbers)
    np.testing.assert_array_equal(here.categories, corpus.categories)
    assert corpus.numbers.tolist() == [[50.0], [51.0]]


def test_a_trained_run_is_read_while_another_row_holds_it(tmp_path: Path) -> None:
    """Two rows of one script may need the same FactorCell, and neither trains it again."""
    run = make_run(tmp_path / "run", ("city",))
    run.save_weights({})
    files.write_json(run.folder / "training.json", {})
    with lock.training_lock(run.folder):
        found = tacl_beyond.factorcell(run.config, {}, run.folder)
    assert found.folder == run.folder

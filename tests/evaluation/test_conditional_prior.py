"""The conditional prior, what it says about columns, and classification with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError
from factorcell.evaluation.baselines import (
    fit_prior,
    load_priors,
    save_priors,
    strong_dependence,
)
from factorcell.evaluation.classification import classify
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.io import files
from factorcell.runs.run import Run, training_facts
from factorcell.training.fit import train_run
from tests.findings import expected_finding
from tests.small_runs import CONTEXT, ROWS, make_run

SHARES = {"a": (0.9, 0.1), "b": (0.3, 0.7)}  # p(x) and p(y) given the value of the other column


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        group, age = random.choice(["a", "b"]), random.normal()
        rows.append({"text": "sun sea", "kind": random.choice(["x", "y"], p=SHARES[group]), "group": group, "age": age})
    return rows


def read(rows: list[dict[str, Any]], *context: str) -> Corpus:
    return prepare(rows, Config.of(context=context, min_count=1, min_context_count=1))


def test_the_dependence_compares_the_prior_with_the_majority_class() -> None:
    rows = make_rows(2000, 4)
    corpus = read(rows, "kind", "group", "age:number")
    prior = fit_prior(corpus, "kind")
    row = strong_dependence(prior, corpus)
    assert row is not None
    labels = corpus.categories[:, 0] - 1
    assert row["accuracy"] == pytest.approx((prior.log_probs(corpus).argmax(1) == labels).mean())
    assert row["majority"] == pytest.approx(max(np.bincount(labels)) / len(labels))
    assert (row["target"], row["column"]) == ("kind", "group")
    shuffled = replace(corpus, categories=np.stack([np.roll(corpus.categories[:, 0], 1), corpus.categories[:, 1]], 1))
    assert strong_dependence(fit_prior(shuffled, "group"), shuffled) is None


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = make_run(tmp_path / "run")
    run.save_weights({})
    save_priors(run, run.prepare(ROWS), run.prepare(ROWS))
    return run


def test_saved_priors_are_read_back(run: Run) -> None:
    corpus = run.prepare(ROWS)
    prior = fit_prior(corpus, "stars")
    loaded = load_priors(run.folder, run.schema)["stars"]
    np.testing.assert_array_equal(loaded.log_probs(corpus), prior.log_probs(corpus))
    assert set(load_priors(run.folder, run.schema)) == {"stars", "city"}
    assert load_priors(run.folder.with_name("none"), run.schema) == {}
    with pytest.raises(UserError, match="does not belong to this schema"):
        load_priors(run.folder, read(ROWS, "stars", "city").schema)


def test_classification_uses_the_conditional_prior_by_default(run: Run) -> None:
    result = classify(run, ROWS, "city")
    assert (result.priors, result.name) == ("conditional", "model, conditional priors")
    corpus, loaded = run.prepare(ROWS), load_priors(run.folder, run.schema)["city"]
    joint = log_likelihoods(run, corpus, [{"city": name} for name in result.names]) + loaded.log_probs(corpus)
    expected = np.exp(joint) / np.exp(joint).sum(1, keepdims=True)
    np.testing.assert_allclose(result.probabilities, expected, rtol=1e-5)
    names = ["model, training priors", "model, uniform priors", "other columns, without the text"]
    assert list(result.other_predictions) == names
    assert (result.other_predictions[names[1]] == classify(run, ROWS, "city", priors="uniform").predicted).all()
    assert (result.other_predictions[names[2]] == loaded.log_probs(corpus).argmax(1)).all()
    one_row = classify(run, ROWS[:1], "city", calibrate=ROWS)
    assert one_row.temperature == pytest.approx(classify(run, ROWS, "city", calibrate=ROWS).temperature)


def test_a_prior_of_fewer_candidates_is_normalized_over_them(run: Run) -> None:
    result = classify(run, ROWS, "city", values=["Nice", "Oslo"])
    np.testing.assert_allclose(result.log_posterior[:, ::-1], classify(run, ROWS, "city").log_posterior, atol=1e-6)


def test_without_other_columns_the_conditional_prior_is_that_of_training(run: Run, tmp_path: Path) -> None:
    texts = [{"text": row["text"], "city": row["city"]} for row in ROWS]
    one_column, without_file = make_run(tmp_path / "one", ("city",)), make_run(tmp_path / "old", CONTEXT)
    for model, rows in ((run, texts), (one_column, ROWS), (without_file, ROWS)):
        options: dict[str, Any] = {"values": ["Nice", "Oslo"], "unknown": "expected"}
        result = classify(model, rows, "city", **options)
        assert (result.priors, list(result.other_predictions)) == ("training", ["model, uniform priors"])
        assert result.log_prior is not None
        np.testing.assert_allclose(np.exp(result.log_prior), [0.4, 0.6])  # Oslo is the city of 6 of 10 texts
        uniform = classify(model, rows, "city", priors="uniform", **options)
        joint = uniform.probabilities * [0.4, 0.6]
        np.testing.assert_allclose(result.probabilities, joint / joint.sum(1, keepdims=True))


def train_with_dependent_columns(folder: Path) -> Path:
    """Train a run whose column `group` determines its column `kind`, and return the path of a test table."""
    train, test = (folder / f"{name}.jsonl" for name in ("train", "test"))
    for path, seed in ((train, 5), (test, 6)):
        rows = make_rows(400, seed)
        files.write_rows(path, [{**row, "group": f"{row['kind']}{row['group']}"} for row in rows])
    config = Config.of(
        context=("kind", "group"), min_count=1, min_context_count=1, embedding_size=4, hidden_size=4, epochs=1.0
    )
    train_run(train, test, config, folder / "run")
    return test


def test_training_and_classify_report_columns_that_predict_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = train_with_dependent_columns(tmp_path)
    (row, *_) = (row for row in training_facts(tmp_path / "run")["dependences"] if row["target"] == "kind")
    assert (row["column"], row["accuracy"]) == ("group", 1.0)
    capsys.readouterr()
    with expected_finding("dependent columns", "group predicts kind without the text"):
        assert main(["classify", str(tmp_path / "run"), str(test), "--target", "kind"]) == 0
    shown = capsys.readouterr()
    assert [line.split("  ")[0] for line in shown.out.splitlines()[:6]] == [
        "classifier",
        "model, conditional priors",
        "model, training priors",
        "model, uniform priors",
        "other columns, without the text",
        "linear baseline",
    ]

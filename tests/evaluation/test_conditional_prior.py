"""The conditional prior, what it says about columns, and classification with it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.classification import classify
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.evaluation.linear_classifier import BASELINES_FILE, PRIORS_FILE, LinearClassifier, save_classifiers
from factorcell.runs.run import Run
from tests.small_runs import CONTEXT, ROWS, make_run


def read(rows: list[dict[str, Any]], *context: str) -> Corpus:
    return prepare(rows, Config.of(context=context, min_count=1, min_context_count=1))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = make_run(tmp_path / "run")
    run.save_weights({})
    save_classifiers(run, run.prepare(ROWS))
    (run.folder / BASELINES_FILE).unlink()
    return run


def load_priors(run: Run) -> dict[str, LinearClassifier]:
    return linear_classifier.load(run.folder / PRIORS_FILE, run.schema)


def test_saved_priors_are_read_back(run: Run) -> None:
    corpus = run.prepare(ROWS)
    prior = LinearClassifier.fit(corpus, "stars", reads_text=False)
    loaded = load_priors(run)["stars"]
    np.testing.assert_array_equal(loaded.log_probs(corpus), prior.log_probs(corpus))
    assert set(load_priors(run)) == {"stars", "city"}
    with pytest.raises(UserError, match="does not belong to this schema"):
        linear_classifier.load(run.folder / PRIORS_FILE, read(ROWS, "stars", "city").schema)


def test_classification_uses_the_conditional_prior_by_default(run: Run) -> None:
    result = classify(run, ROWS, "city")
    assert (result.priors, result.name) == ("conditional", "model, conditional priors")
    corpus, loaded = run.prepare(ROWS), load_priors(run)["city"]
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


def test_the_linear_baseline_names_the_columns_that_a_table_lacks(run: Run) -> None:
    save_classifiers(run, run.prepare(ROWS))
    linear = linear_classifier.load(run.folder / BASELINES_FILE, run.schema)["city"]
    for columns in (("text", "city", "stars"), tuple(ROWS[0])):
        rows = [{name: row[name] for name in columns} for row in ROWS]
        *_, name = classify(run, rows, "city", unknown="expected").other_predictions
        absent = [other.source_column for other in linear.others if other.source_column not in columns]
        assert name == (f"linear baseline without {', '.join(dict.fromkeys(absent))}" if absent else "linear baseline")
        assert bool(absent) == (len(columns) == 3)


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

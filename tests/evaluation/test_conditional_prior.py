"""The conditional prior against counts and finite differences, and classification with it."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell import files
from factorcell.commands.main import main
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.evaluation import conditional_prior
from factorcell.evaluation.classification import classify
from factorcell.evaluation.conditional_prior import (
    ConditionalPrior,
    fit_prior,
    load_dependences,
    load_priors,
    save_priors,
)
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.model import saved_results
from factorcell.model.run import Run, training_facts
from factorcell.reports import report_page
from factorcell.training.fit import fit
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


def test_a_prior_given_one_category_approximates_the_shares_of_its_values() -> None:
    rows = make_rows(4000, 1)
    corpus = read(rows, "kind", "group")
    prior = ConditionalPrior(corpus.schema, "kind")
    prior.fit(corpus)
    names = corpus.schema.variable("kind").values[1:]
    probabilities = np.exp(prior.log_probs(corpus))
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    for group in SHARES:
        is_member = np.array([row["group"] == group for row in rows])
        for column, name in enumerate(names):
            share = np.mean([row["kind"] == name for row in rows if row["group"] == group])
            assert probabilities[is_member, column] == pytest.approx(share, abs=5e-3)


def test_the_fitted_weights_minimize_the_penalized_nats() -> None:
    rows = make_rows(60, 2)
    corpus = read(rows, "kind", "group", "age:number")
    prior = ConditionalPrior(corpus.schema, "kind")
    prior.fit(corpus)
    prior.requires_grad_(False)
    labels = corpus.categories[:, 0] - 1

    def loss() -> float:
        nats = -prior.log_probs(corpus)[np.arange(len(rows)), labels].sum()
        weights = (parameter for name, parameter in prior.named_parameters() if name != "bias")
        return float(nats + conditional_prior.PENALTY / 2 * sum(float(weight.square().sum()) for weight in weights))

    best = loss()
    with torch.no_grad():
        for parameter in prior.parameters():
            for index, change in itertools.product(range(parameter.numel()), (-0.05, 0.05)):
                parameter.view(-1)[index] += change
                assert loss() > best
                parameter.view(-1)[index] -= change


def test_equal_contexts_are_summed_without_changing_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = read(make_rows(80, 3), "kind", "group", "age:number")
    corpus = replace(corpus, numbers=corpus.numbers.round())
    summed, separate = (ConditionalPrior(corpus.schema, "kind") for _ in range(2))
    summed.fit(corpus)
    monkeypatch.setattr(
        "factorcell.data.context.Context.distinct", lambda context: (context, torch.arange(len(context)))
    )
    separate.fit(corpus)
    np.testing.assert_allclose(summed.log_probs(corpus), separate.log_probs(corpus), atol=2e-3)


def test_the_dependence_compares_the_prior_with_the_majority_class() -> None:
    rows = make_rows(2000, 4)
    corpus = read(rows, "kind", "group", "age:number")
    prior = ConditionalPrior(corpus.schema, "kind")
    prior.fit(corpus)
    dependence = prior.dependence(corpus)
    assert dependence is not None
    labels = corpus.categories[:, 0] - 1
    assert dependence.accuracy == pytest.approx((prior.log_probs(corpus).argmax(1) == labels).mean())
    assert dependence.majority == pytest.approx(max(np.bincount(labels)) / len(labels))
    assert dependence.variables == ("group",)
    assert dependence.is_strong
    unrelated = ConditionalPrior(corpus.schema, "group")
    shuffled = replace(corpus, categories=np.stack([np.roll(corpus.categories[:, 0], 1), corpus.categories[:, 1]], 1))
    unrelated.fit(shuffled)
    chance = unrelated.dependence(shuffled)
    assert chance is not None
    assert not chance.is_strong


def test_the_dependence_names_the_numbers_that_predict_the_target() -> None:
    random = np.random.default_rng(8)
    numbers = random.normal(size=(800, 3)).tolist()
    for expected in (("a", "b"), ("c",), ("a", "b", "c")):
        rows: list[dict[str, Any]] = [{"text": "x", **dict(zip("abc", values, strict=True))} for values in numbers]
        rows = [{**row, "kind": "ny"[sum(row[name] for name in expected) > 0]} for row in rows]
        corpus = read(rows, "kind", "a:number", "b:number", "c:number")
        prior = ConditionalPrior(corpus.schema, "kind")
        prior.fit(corpus)
        dependence = prior.dependence(corpus)
        assert dependence is not None
        assert dependence.variables == expected
    copies = [{**row, "b": row["a"]} for row in rows]  # neither copy is necessary
    corpus = read([{**row, "kind": "ny"[row["a"] > 0]} for row in copies], "kind", "a:number", "b:number")
    prior = ConditionalPrior(corpus.schema, "kind")
    prior.fit(corpus)
    dependence = prior.dependence(corpus)
    assert dependence is not None
    assert len(dependence.variables) == 1


def alternating_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Return rows whose kind alternates with the year; the age has no relation to it."""
    random = np.random.default_rng(seed)
    years = random.integers(1, 9, count).tolist()
    return [
        {"text": "sun sea", "kind": "xy"[year % 2], "year": year, "age": random.normal() * 10 + 50} for year in years
    ]


def test_a_prior_reads_ranges_of_a_number_only_if_they_predict_the_target() -> None:
    rows = alternating_rows(600, 7)
    for column, expected_variable, uses_ranges in (("year", "year", True), ("age", "age", False)):
        corpus = read(rows, "kind", f"{column}:number")
        train, held_out = corpus.select(np.arange(400)), corpus.select(np.arange(400, 600))
        prior = fit_prior("kind", train, held_out)
        dependence = prior.dependence(held_out)
        assert dependence is not None
        assert (prior.ranges is not None, dependence.is_strong) == (uses_ranges, uses_ranges)
        assert dependence.variables == (expected_variable,)
        assert not uses_ranges or dependence.accuracy == 1


def test_a_missing_number_has_the_mean_weights_of_its_ranges_in_a_prior() -> None:
    rows = alternating_rows(600, 8)
    corpus = read(rows, "kind", "year:number")
    prior = fit_prior("kind", corpus, corpus)
    missing = replace(corpus, numbers=np.full_like(corpus.numbers, np.nan))
    assert prior.ranges is not None
    assert prior.embeddings.linear is not None
    shares = prior.ranges.counts[0] / len(rows)
    weights = prior.embeddings.tables[0].detach().numpy()[1:]
    logits = shares @ weights + prior.bias.detach().numpy() + prior.embeddings.linear.bias.detach().numpy()
    expected = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(prior.log_probs(missing)[0], expected, rtol=1e-4)


def test_numbers_outside_the_range_of_training_are_read_as_its_ends_or_as_missing() -> None:
    draw = np.random.default_rng(5)
    ages = draw.integers(20, 60, 500).tolist()
    rows = [{"text": "sun", "kind": "xy"[draw.random() < (age - 20) / 40], "age": age} for age in ages]
    corpus = read(rows, "kind", "age:number")
    prior = fit_prior("kind", corpus, corpus)

    def log_probs(age: float) -> Any:
        return prior.log_probs(replace(corpus.select(np.arange(1)), numbers=np.array([[age]], np.float32)))

    np.testing.assert_array_equal(log_probs(70), log_probs(max(ages)))
    np.testing.assert_array_equal(log_probs(-5), log_probs(min(ages)))
    np.testing.assert_array_equal(log_probs(20_210), log_probs(math.nan))
    np.testing.assert_array_equal(log_probs(-100), log_probs(math.nan))
    assert np.abs(log_probs(20) - log_probs(50)).max() > 0.1


def test_saved_ranges_of_numbers_are_read_back(tmp_path: Path) -> None:
    corpus = read(alternating_rows(600, 9), "kind", "year:number")
    run = make_run(tmp_path / "run")
    run.schema = corpus.schema
    save_priors(run, corpus, corpus)
    loaded = load_priors(run.folder, corpus.schema)["kind"]
    assert loaded.ranges is not None
    np.testing.assert_array_equal(loaded.log_probs(corpus), fit_prior("kind", corpus, corpus).log_probs(corpus))
    two_numbers = read(alternating_rows(600, 9), "kind", "year:number", "age:number")
    with pytest.raises(UserError, match="does not belong to this schema"):
        load_priors(run.folder, two_numbers.schema)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = make_run(tmp_path / "run")
    run.save_weights({})
    save_priors(run, run.prepare(ROWS), run.prepare(ROWS))
    return run


def test_saved_priors_are_read_back(run: Run) -> None:
    corpus = run.prepare(ROWS)
    prior = ConditionalPrior(run.schema, "stars")
    prior.fit(corpus)
    loaded = load_priors(run.folder, run.schema)["stars"]
    np.testing.assert_array_equal(loaded.log_probs(corpus), prior.log_probs(corpus))
    assert prior.dependence(corpus) in load_dependences(run.folder)
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
    fit(train, test, config, folder / "run")
    return test


def test_training_and_classify_report_columns_that_predict_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = train_with_dependent_columns(tmp_path)
    (row, *_) = (row for row in training_facts(tmp_path / "run")["dependences"] if row["target"] == "kind")
    assert (row["columns"], row["accuracy"]) == (["group"], 1.0)
    capsys.readouterr()
    with expected_finding("dependent columns", "group predicts kind without the text (accuracy 1.00"):
        assert main(["classify", str(tmp_path / "run"), str(test), "--target", "kind"]) == 0
    shown = capsys.readouterr()
    assert [line.split("  ")[0] for line in shown.out.splitlines()[5:11]] == [
        "classifier",
        "model, conditional priors",
        "model, training priors",
        "model, uniform priors",
        "other columns, without the text",
        "linear baseline (reads n-grams of up to 2 words, group)",
    ]


def test_a_saved_accuracy_has_a_remark_if_the_other_columns_predict_the_target(tmp_path: Path) -> None:
    test, folder = train_with_dependent_columns(tmp_path), tmp_path / "run"
    empty = tmp_path / "empty.jsonl"
    files.write_rows(empty, [{**row, "group": None} for row in files.read_rows(test)])
    clause = "the other columns, mainly group, predict kind without the text"
    for table, accuracy in ((empty, None), (test, 1.0)):
        assert main(["classify", str(folder), str(table), "--target", "kind"]) == 0
        (*_, saved) = saved_results.read(folder)
        assert saved["accuracy_without_text"] == accuracy
        assert saved["accuracy_remark"] == (accuracy and f"{clause} (accuracy 1.0000)")
    card = (folder / "README.md").read_text(encoding="utf-8")
    measures = [f"accuracy of kind, model, {priors} priors" for priors in ("conditional", "training", "uniform")]
    for line in card.partition("## Results")[2].splitlines():
        cells = line.split(" | ")
        assert (clause in line) == (cells[0] == "| test.jsonl" and cells[1] in measures), line
    assert f"; {clause} (accuracy 1.0000))" in card.partition("## Results")[0], "the metadata of the hub has it too"
    labels = [label for label in re.findall(r"<dt>([^<]*)</dt>", report_page([folder])) if "accuracy" in label]
    suffix = f"majority class {saved['majority']:.4f}; {clause} (accuracy 1.0000)"
    assert labels == [f"accuracy of kind, test.jsonl: model, conditional priors; {suffix}"]

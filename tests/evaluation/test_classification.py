"""Classification against explicit sums, on a model with random weights."""

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.errors import UserError
from factorcell.evaluation import classification
from factorcell.evaluation.bayes_rule import apply_bayes_rule, auc, log_odds
from factorcell.evaluation.classification import classify, classify_points
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.ngram.mixture import NGRAM, VALUE, CountModels, Mixture, count_by_value
from factorcell.ngram.ngram import NGram, count_ngrams
from factorcell.runs.run import Run
from tests.small_runs import CONTEXT, ROWS, make_run, nats_of


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", output_bias=["low_rank", "one_hot"])


@pytest.mark.parametrize("context", [CONTEXT, ("city",), ("city", "lat:number")])
@pytest.mark.parametrize("tokens", [1, 7, 20_000])
def test_likelihoods_equal_scores_of_rows_with_the_candidate_value(
    tmp_path: Path, context: tuple[str, ...], tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorcell.evaluation.likelihoods.MAX_BATCH_TOKENS", tokens)
    monkeypatch.setattr("factorcell.nn.language_model.MAX_CONTEXT_VALUES", tokens)
    run = make_run(tmp_path / "run", context, output_bias=["low_rank", "one_hot"])
    likelihoods = log_likelihoods(run, run.prepare(ROWS), [{"city": "Oslo"}, {"city": "Nice"}])
    for column, city in enumerate(("Oslo", "Nice")):
        nats = run.score([{**row, "city": city} for row in ROWS]).tolist()
        np.testing.assert_allclose(-likelihoods[:, column], nats, rtol=1e-5)


@pytest.mark.parametrize("context", [("stars",), CONTEXT])
def test_candidates_may_set_different_variables_in_any_order(context: tuple[str, ...], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", context)
    corpus, candidates = run.prepare(ROWS), [{"stars": "5"}, {}, {"stars": "1"}]
    likelihoods = log_likelihoods(run, corpus, candidates)
    for column, candidate in enumerate(candidates):
        nats = run.score([{**row, **candidate} for row in ROWS])
        np.testing.assert_allclose(-likelihoods[:, column], nats, rtol=1e-5)
    np.testing.assert_allclose(log_likelihoods(run, corpus, candidates[::-1]), likelihoods[:, ::-1], rtol=1e-6)


def test_counts_by_another_column_do_not_hide_what_the_model_finds(run: Run) -> None:
    corpus, [city] = run.prepare(ROWS), [variable for variable in run.schema.categories if variable.name == "city"]
    candidates: dict[str, list[dict[str, str]]] = {"stars": [{"stars": "5"}, {"stars": "1"}]}
    candidates["city"] = [{"city": "Oslo"}, {"city": "Nice"}]
    neural = {name: log_likelihoods(run, corpus, rows) for name, rows in candidates.items()}
    ngram = NGram(run.folder, run.config, run.tokenizer, count_ngrams(corpus, 2))
    orders = count_by_value(ngram, corpus, run.schema.categories.index(city), 2)
    run.mixture = Mixture(run.model, run.schema, CountModels(ngram, city, orders, (NGRAM, VALUE)))
    assert np.array_equal(log_likelihoods(run, corpus, candidates["stars"]), neural["stars"])
    assert log_likelihoods(run, corpus, candidates["stars"], samples=1000).shape == (len(corpus), 2)
    with pytest.raises(UserError, match="its n-gram mixture computes exact probabilities; omit --samples"):
        log_likelihoods(run, corpus, candidates["city"], samples=1000)
    mixed = log_likelihoods(run, corpus, candidates["city"])
    assert not np.allclose(mixed, neural["city"])
    for column, candidate in enumerate(candidates["city"]):
        nats = run.score([{**row, **candidate} for row in ROWS])
        np.testing.assert_allclose(-mixed[:, column], nats, rtol=1e-5)


def test_classification_is_bayes_rule(run: Run) -> None:
    priors = {"5": 3.0, "1": 1.0}
    result = classify(run, ROWS, "stars", priors="uniform").with_priors(priors)
    assert set(result.names) == {"1", "5"}
    joint = np.array(
        [[priors[s] * math.exp(-sum(nats_of(run, {**row, "stars": s}))) for s in result.names] for row in ROWS]
    )
    np.testing.assert_allclose(result.probabilities, joint / joint.sum(1, keepdims=True), rtol=1e-4)
    truth = [result.names.index(row["stars"]) for row in ROWS]
    predicted = joint.argmax(1)
    metrics = result.metrics()
    assert metrics["accuracy"] == pytest.approx(np.mean(predicted == truth))
    expected = np.zeros((2, 2), dtype=int)
    for true, guess in zip(truth, predicted, strict=True):
        expected[true, guess] += 1
    assert result.confusion().tolist() == expected.tolist()
    f1 = [2 * expected[k, k] / max(1, expected[k].sum() + expected[:, k].sum()) for k in range(2)]
    assert metrics["macro_f1"] == pytest.approx(np.mean(f1))


def test_texts_without_the_target_column_are_classified(run: Run) -> None:
    rows = [{key: value for key, value in row.items() if key != "city"} for row in ROWS]
    result = classify(run, rows, "city")
    with_truth = classify(run, ROWS, "city")
    np.testing.assert_allclose(result.log_posterior, with_truth.log_posterior, atol=1e-6)
    assert math.isnan(result.metrics()["accuracy"])
    assert result.metrics()["left_out"] == len(ROWS)


def test_texts_with_unseen_true_values_are_excluded_from_metrics(run: Run) -> None:
    rows = [*ROWS, {**ROWS[0], "city": "Rome"}]
    metrics = classify(run, rows, "city").metrics()
    assert (metrics["left_out"], metrics["texts"]) == (1, len(ROWS))


def test_metrics_include_baseline_accuracies_and_excluded_texts(run: Run) -> None:
    rows = [*ROWS, {**ROWS[0], "city": "Rome"}, {**ROWS[0], "city": None}, {**ROWS[0], "city": ""}]
    plain = classify(run, rows, "city", priors="uniform")
    metrics = plain.metrics()
    assert metrics["left_out"] == 3
    assert (metrics["majority"], metrics["majority_value"]) == (0.6, "Oslo")
    weighted = classify(run, rows, "city")
    (with_training_priors,) = metrics["others"]
    assert with_training_priors["classifier"] == weighted.name == "model, training priors"
    assert with_training_priors["accuracy"] == weighted.metrics()["accuracy"]
    assert [row["classifier"] for row in weighted.metrics()["others"]] == [plain.name]
    true_predictions = np.where(plain.truth < 0, 0, plain.truth)
    with_true_predictions = replace(plain, other_predictions={"oracle": true_predictions}).metrics()
    (oracle,) = with_true_predictions["others"]
    assert (oracle["accuracy"], with_true_predictions["accuracy"]) == (1.0, metrics["accuracy"])
    assert oracle["difference"] == pytest.approx(metrics["accuracy"] - 1)


def test_error_messages_do_not_name_users(run: Run) -> None:
    run.config = replace(run.config, data=replace(run.config.data, user="city", context=("stars",)))
    for values in (["Olso"], ["Oslo", "Niece"]):
        with pytest.raises(UserError, match=r"unknown value of city .*; the run has 2 values$") as error:
            classify(run, ROWS, "city", values=values)
        assert not {"'Oslo'", "'Nice'"} & set(str(error.value).split())
    with pytest.raises(UserError, match=r"unknown value of city 'Olso'; the run has 2 values$"):
        log_likelihoods(run, run.prepare(ROWS), [{"city": "Olso"}])


def test_invalid_targets_are_errors(run: Run) -> None:
    for target, options, message in [
        ("town", {}, "unknown context variable 'town'"),
        ("lat", {}, "lat: expected a category, got a variable of kind number; .* train with --context lat:category"),
        ("city", {"values": ["Olso"]}, "did you mean 'Oslo'"),
        ("city", {"values": ["Oslo"]}, "city: expected at least two values, got 1"),
        ("city", {"priors": "flat"}, "unknown priors 'flat'"),
    ]:
        with pytest.raises(UserError, match=message):
            classify(run, ROWS, target, **options)  # type: ignore[arg-type]


def test_classifying_with_an_unadapted_run_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "plain", adapt=(), output_bias=())
    with pytest.raises(
        UserError, match=r"^plain is not adapted: all contexts give a text the same probability; use an adapted run$"
    ):
        classify(run, ROWS, "city")
    with pytest.raises(UserError, match=r"^plain is not adapted"):
        classify_points(run, ROWS, {"Oslo": {"lat": 59.9, "lon": 10.8}, "Nice": {"lat": 43.7, "lon": 7.3}})


def test_priors_are_numbers_of_all_candidates(run: Run) -> None:
    result = classify(run, ROWS, "stars", priors="uniform")
    expected = result.with_priors({"5": 3.0, "1": 1.0}).log_posterior
    numbers: dict[Any, float] = {5: 3.0, 1.0: 1.0}
    assert np.array_equal(result.with_priors(numbers).log_posterior, expected)
    with pytest.raises(UserError, match="priors: expected a number for each candidate, got none for 1"):
        result.with_priors({"5": 3.0})
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="priors: expected numbers of at least 0 that are not all 0"):
            result.with_priors({"5": 0.0, "1": wrong})


def test_points_with_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("name,lat\nOslo,59.9\nNice,43.7\nOslo,59\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"points\.csv: expected each name once, got 3 rows with 2 names"):
        classification.read_points(path)


def test_true_points_are_nearest_by_great_circle(run: Run) -> None:
    points = {"Oslo": {"lat": 59.91, "lon": 10.75}, "Nice": {"lat": 43.7, "lon": 7.26}}
    result = classify_points(run, ROWS, points, within=100)
    nearest = [{"Oslo": 0, "Nice": 1}[str(row["city"])] for row in ROWS]
    nearest[4] = nearest[9] = -1  # 59.0, 10.0 lies 110 km from Oslo
    assert result.truth.tolist() == nearest
    for column, point in enumerate(points.values()):
        nats = run.score([{**row, **point} for row in ROWS]).tolist()
        likelihoods = log_likelihoods(run, run.prepare(ROWS), list(points.values()))
        np.testing.assert_allclose(-likelihoods[:, column], nats, rtol=1e-5)


def test_points_of_other_numbers_are_predicted_without_a_true_point(run: Run) -> None:
    result = classify_points(run, ROWS, {"east": {"lon": 10.0}, "west": {"lon": 7.0}})
    assert len(result.labels) == len(ROWS)
    assert not result.has_labels


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=30).filter(
        lambda pairs: len({positive for _, positive in pairs}) == 2
    )
)
def test_auc_is_the_share_of_pairs_in_order(pairs: list[tuple[int, bool]]) -> None:
    positive = [score for score, truth in pairs if truth]
    negative = [score for score, truth in pairs if not truth]
    wins = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    scores = np.array([score for score, _ in pairs], dtype=float)
    assert auc(scores, np.array([truth for _, truth in pairs])) == pytest.approx(np.mean(wins))


@pytest.mark.parametrize("scale", [1.0, 200.0])  # with 200, most posteriors are so confident that they round to 1
def test_the_auc_counts_pairs_of_texts_by_their_exact_posterior(scale: float) -> None:
    random = np.random.default_rng(1)
    log_likelihoods = random.normal(-5, 2, (30, 3)) * scale
    weights, truth = [5, 1, 2], random.choice(["a", "b", "c"], 30).tolist()
    result = apply_bayes_rule(("a", "b", "c"), log_likelihoods, truth)
    result = result.with_log_prior(np.log(np.array(weights) / 8), "training")
    with localcontext() as context:
        context.prec = 1000
        joint = [[Decimal(w) * Decimal(x).exp() for w, x in zip(weights, row, strict=True)] for row in log_likelihoods]
        posterior = [[value / sum(row) for value in row] for row in joint]
        for column, row in enumerate(result.metrics()["values"]):
            scores = [values[column] for values in posterior]
            pairs = [(i, j) for i in range(30) for j in range(30) if truth[i] == row["value"] != truth[j]]
            wins = [Decimal(scores[i] > scores[j]) + Decimal(scores[i] == scores[j]) / 2 for i, j in pairs]
            assert row["auc"] == pytest.approx(float(sum(wins) / len(pairs)))


def test_log_odds_of_certain_and_impossible_values_are_infinite() -> None:
    with np.errstate(divide="ignore"):
        log_posterior = np.log([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25]])
    np.testing.assert_allclose(
        log_odds(log_posterior), [[math.inf, -math.inf, -math.inf], [0, math.log(1 / 3), math.log(1 / 3)]], atol=1e-12
    )


def test_sampled_likelihoods_approximate_exact_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", output_bias=["low_rank", "hash"])
    corpus, cities = run.prepare(ROWS), [{"city": "Oslo"}, {"city": "Nice"}]
    exact = log_likelihoods(run, corpus, cities)
    np.testing.assert_allclose(log_likelihoods(run, corpus, cities, samples=100_000), exact, rtol=1e-4, atol=1e-4)
    few = log_likelihoods(run, corpus, cities, samples=3)
    np.testing.assert_array_equal(few, log_likelihoods(run, corpus, cities, samples=3))
    assert not np.allclose(few, exact, atol=1e-2)
    alone = np.concatenate([log_likelihoods(run, run.prepare([row]), cities, samples=3) for row in ROWS])
    np.testing.assert_allclose(few, alone, rtol=1e-4, atol=1e-4)
    probabilities = classify(run, ROWS, "city", samples=100_000).probabilities
    np.testing.assert_allclose(probabilities, classify(run, ROWS, "city").probabilities, atol=1e-4)


def test_great_circle_distances_in_km() -> None:
    places = np.array([[48.86, 2.35], [0.0, 0.0]])
    distances = classification.great_circle_distances(places, np.array([[51.51, -0.13], [0.0, 180.0], [48.86, 2.35]]))
    assert distances[0, [0, 2]] == pytest.approx([344, 0], abs=2)  # Paris to London
    assert distances[1, 1] == pytest.approx(np.pi * classification.EARTH_RADIUS)

"""Calibration against explicit sums, draws from known probabilities, and a grid search over temperatures."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.commands.cli.main import main
from factorcell.evaluation.bayes_rule import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    Floats,
    apply_temperature,
    calibration_error,
    fit_temperature,
    value_nats,
)
from factorcell.evaluation.classification import classify
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.io import files
from factorcell.runs import saved_results
from tests.small_runs import ROWS, make_run

BINS = 15  # of Guo et al. 2017, as in the documentation


def draw_posteriors(
    texts: int, seed: int, sharpness: float = 1.0
) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return log posteriors (texts, 4) at temperature 1 / sharpness, and true values drawn at temperature 1."""
    random = np.random.default_rng(seed)
    logs = apply_temperature(random.normal(0, 2, (texts, 4)), 1.0)
    truth = np.array([random.choice(4, p=np.exp(row) / np.exp(row).sum()) for row in logs])
    return apply_temperature(logs, 1 / sharpness), truth


@given(st.integers(1, 60), st.integers(0, 1000), st.sampled_from([0.3, 1.0, 4.0]))
@settings(max_examples=60, deadline=None)
def test_the_calibration_error_is_the_sum_over_bins(texts: int, seed: int, sharpness: float) -> None:
    logs, truth = draw_posteriors(texts, seed, sharpness)
    probabilities = np.exp(logs)
    expected = 0.0
    for number in range(BINS):
        low, high = number / BINS, (number + 1) / BINS
        inside = [
            (max(row), int(row.argmax() == true))
            for row, true in zip(probabilities, truth, strict=True)
            if low <= max(row) < high or (number == BINS - 1 and max(row) >= high)
        ]
        if inside:
            confidence, correct = (sum(part) / len(inside) for part in zip(*inside, strict=True))
            expected += len(inside) / texts * abs(correct - confidence)
    assert calibration_error(probabilities, truth) == pytest.approx(expected, abs=1e-12)
    nats = [-math.log(row[true]) for row, true in zip(probabilities, truth, strict=True)]
    assert value_nats(logs, truth) == pytest.approx(sum(nats) / texts)


@pytest.mark.parametrize("sharpness", [0.25, 1.0, 3.0])
def test_a_fitted_temperature_calibrates_held_out_texts(sharpness: float) -> None:
    temperature = fit_temperature(*draw_posteriors(8000, 1, sharpness))
    assert temperature == pytest.approx(sharpness, rel=0.06)
    logs, truth = draw_posteriors(8000, 2, sharpness)
    calibrated = apply_temperature(logs, temperature)
    assert calibration_error(np.exp(calibrated), truth) < 0.02
    assert (calibrated.argmax(1) == logs.argmax(1)).all()
    if sharpness != 1:
        assert calibration_error(np.exp(logs), truth) > 0.05
        assert value_nats(calibrated, truth) < value_nats(logs, truth)


@pytest.mark.parametrize("seed", range(2))
def test_the_fitted_temperature_minimizes_the_nats(seed: int) -> None:
    logs, truth = draw_posteriors(40, seed, 2.0)
    grid = np.geomspace(MIN_TEMPERATURE, MAX_TEMPERATURE, 4001)
    best = min(value_nats(apply_temperature(logs, temperature), truth) for temperature in grid)
    assert value_nats(apply_temperature(logs, fit_temperature(logs, truth)), truth) <= best + 1e-9


def test_a_temperature_does_not_change_the_prior() -> None:
    random = np.random.default_rng(0)
    prior = np.log([0.7, 0.2, 0.08, 0.02])
    evidence = random.normal(0, 2, (8000, 4))
    joint = np.exp(evidence + prior)
    truth = np.array([random.choice(4, p=row / row.sum()) for row in joint])
    sharp = apply_temperature(3 * evidence + prior, 1.0)
    fitted = fit_temperature(sharp, truth, prior)
    assert fitted == pytest.approx(3, rel=0.06)
    calibrated = apply_temperature(sharp, fitted, prior)
    expected = evidence * (3 / fitted) + prior
    np.testing.assert_allclose(
        np.exp(calibrated), np.exp(expected) / np.exp(expected).sum(1, keepdims=True), rtol=1e-9, atol=1e-12
    )
    grid = np.geomspace(MIN_TEMPERATURE, MAX_TEMPERATURE, 401)
    assert (
        value_nats(calibrated, truth)
        <= min(value_nats(apply_temperature(sharp, temperature, prior), truth) for temperature in grid) + 1e-9
    )
    tempered_prior = apply_temperature(sharp, fit_temperature(sharp, truth))
    assert value_nats(calibrated, truth) < value_nats(tempered_prior, truth)
    assert (calibrated.argmax(1) == truth).mean() > (tempered_prior.argmax(1) == truth).mean()


def test_a_value_without_a_prior_stays_impossible() -> None:
    prior = np.log(np.array([0.5, 0.25, 0.25]))
    prior[1] = -np.inf
    logs = np.array([[-0.1, -np.inf, -2.3], [-3.0, -np.inf, -0.05]])
    posterior = apply_temperature(logs, 2.0, prior)
    assert np.isneginf(posterior[:, 1]).all()
    np.testing.assert_allclose(np.exp(posterior).sum(1), 1)
    assert math.isfinite(fit_temperature(logs, np.array([0, 2]), prior))


def test_temperatures_of_separable_wrong_and_impossible_values() -> None:
    logs = np.log([[0.9, 0.1], [0.2, 0.8]])
    assert value_nats(apply_temperature(logs, fit_temperature(logs, np.array([0, 1]))), np.array([0, 1])) < 1e-12
    assert fit_temperature(logs, np.array([1, 0])) == pytest.approx(MAX_TEMPERATURE)
    none = np.zeros(0, np.int64)
    assert fit_temperature(logs[:0], none) == 1.0
    assert math.isnan(calibration_error(logs[:0], none))
    assert math.isnan(value_nats(logs[:0], none))
    impossible = np.array([[math.log(0.7), math.log(0.3), -math.inf]] * 10)
    truth = np.array([0] * 7 + [1] * 3)
    assert fit_temperature(impossible, truth) == pytest.approx(1.0, rel=1e-6)


def test_classify_at_the_temperature_of_another_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    run.save_weights({})
    files.write_rows(tmp_path / "test.jsonl", ROWS)
    files.write_rows(tmp_path / "dev.jsonl", ROWS[1:4])
    plain, dev = classify(run, ROWS, "city", priors="uniform"), classify(run, ROWS[1:4], "city", priors="uniform")
    calibrated = classify(run, ROWS, "city", priors="uniform", calibrate=tmp_path / "dev.jsonl")
    assert calibrated.temperature is not None
    assert calibrated.temperature == pytest.approx(dev.fitted_temperature(), rel=1e-6)
    np.testing.assert_allclose(
        calibrated.log_posterior, apply_temperature(plain.log_posterior, calibrated.temperature), atol=1e-9
    )
    metrics, before = calibrated.metrics(), plain.metrics()
    assert metrics["accuracy"] == before["accuracy"]
    assert (metrics["classifier"], metrics["temperature"]) == ("calibrated", calibrated.temperature)
    command = ["classify", str(run.folder), str(tmp_path / "test.jsonl"), "--target", "city", "--priors", "uniform"]
    assert main([*command, "--calibrate", str(tmp_path / "dev.jsonl")]) == 0
    assert "calibrated" in capsys.readouterr().out
    assert before["mean_confidence"] == pytest.approx(np.exp(plain.log_posterior).max(1).mean())
    points = ["--points", str(tmp_path / "dev.jsonl"), "--calibrate", str(tmp_path / "dev.jsonl")]
    assert main([*command[:3], *points]) == 2
    assert "require --target COLUMN" in capsys.readouterr().err


def test_training_priors_are_combined_with_tempered_evidence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.save_weights({})
    result = classify(run, ROWS, "city", priors="training", calibrate=ROWS[1:4])
    corpus = run.prepare(ROWS)
    evidence = log_likelihoods(run, corpus, [{"city": name} for name in result.names])
    assert result.temperature is not None
    counts = np.array(
        [run.schema.variable("city").counts[1 + place] for place in range(len(result.names))], dtype=float
    )
    joint = np.exp(evidence / result.temperature) * counts / counts.sum()
    np.testing.assert_allclose(result.probabilities, joint / joint.sum(1, keepdims=True), rtol=1e-6)
    uniform = classify(run, ROWS, "city", priors="uniform", calibrate=ROWS[1:4])
    plain = classify(run, ROWS, "city", priors="training")
    assert (uniform.name, result.name) == ("model, uniform priors, calibrated", "model, training priors, calibrated")
    assert list(uniform.other_predictions) == ["model, uniform priors", plain.name]
    assert list(result.other_predictions) == [plain.name, "model, uniform priors"]
    for other in (uniform, result):
        assert (other.other_predictions[plain.name] == plain.predicted).all()


def test_a_calibrated_and_a_plain_accuracy_do_not_replace_each_other(tmp_path: Path) -> None:
    torch.manual_seed(1)  # weights with which calibration changes predictions
    run = make_run(tmp_path / "run")
    run.save_weights({})
    test, dev = tmp_path / "test.jsonl", tmp_path / "dev.jsonl"
    files.write_rows(test, ROWS)
    files.write_rows(dev, ROWS)
    command = ["classify", str(run.folder), str(test), "--target", "city"]
    plain = classify(run, test, "city").metrics()["accuracy"]
    calibrated = classify(run, test, "city", calibrate=dev).metrics()["accuracy"]
    assert plain != calibrated
    for arguments in ([], ["--calibrate", str(dev)], []):
        assert main([*command, *arguments, "--save"]) == 0
        accuracies = {row["classifier"]: row["accuracy"] for row in saved_results.read(run.folder)}
        assert accuracies["model"] == plain
    assert accuracies["calibrated"] == calibrated


def test_accuracies_of_a_sampled_softmax_do_not_replace_exact_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.save_weights({})
    result = classify(run, ROWS, "city", samples=3)
    assert (result.name, [*result.other_predictions]) == (
        "model, training priors, 3 samples",
        ["model, uniform priors, 3 samples"],
    )

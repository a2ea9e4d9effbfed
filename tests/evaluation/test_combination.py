"""The linear baseline of a run, and its combination with the model, against a grid search over weights."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.errors import UserError
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.bayes_rule import apply_temperature, value_nats
from factorcell.evaluation.classification import classify, fit_combination
from factorcell.evaluation.linear_classifier import BASELINES_FILE, classify_with_linear_baseline, read_train_and_test
from factorcell.io import files
from factorcell.runs import saved_results
from factorcell.runs.run import Run
from factorcell.training.fit import train_run


def weighted_posterior(weights: Mapping[str, float], log_probs: Mapping[str, Any]) -> Any:
    return apply_temperature(sum(weight * log_probs[name] for name, weight in weights.items()), 1.0)


def test_the_weights_minimize_the_penalized_nats() -> None:
    random = np.random.default_rng(0)
    arrays = apply_temperature(random.normal(0, 2, (3 * 200, 4)), 1.0).reshape(3, 200, 4)
    log_probs = dict(zip(("likelihood", "prior", "linear"), arrays, strict=True))
    joint = np.exp(np.tensordot([0.3, 1.0, 0.6], arrays, axes=1))
    truth = np.array([random.choice(4, p=row / row.sum()) for row in joint])
    fitted = fit_combination(log_probs, truth)

    def loss(weights: dict[str, float]) -> float:
        penalty = sum(weight**2 for weight in weights.values()) / 2
        return len(truth) * value_nats(weighted_posterior(weights, log_probs), truth) + penalty

    grid = np.linspace(0, 1.6, 17)
    losses = [loss(dict(zip(log_probs, weights, strict=True))) for weights in itertools.product(grid, repeat=3)]
    assert loss(fitted) < min(losses)
    np.testing.assert_allclose(list(fitted.values()), [0.3, 1.0, 0.6], atol=0.25)
    posterior = np.tensordot(list(fitted.values()), arrays, axes=1)
    np.testing.assert_allclose(weighted_posterior(fitted, log_probs), apply_temperature(posterior, 1.0))


def test_weights_of_texts_that_all_classifiers_separate_are_finite() -> None:
    log_probs = np.log(np.eye(3)[[0, 1, 2] * 5] * 0.9 + 0.04)
    weights = fit_combination({"likelihood": log_probs, "linear": log_probs}, np.array([0, 1, 2] * 5))
    assert 0 < weights["likelihood"] < 10
    assert weights["linear"] == pytest.approx(weights["likelihood"], rel=1e-4)


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A training, a development and a test table, whose columns `place` and `kind` the words depend on."""
    random = np.random.default_rng(0)
    paths = (tmp_path / "train.jsonl", tmp_path / "dev.jsonl", tmp_path / "test.jsonl")
    for path, count in zip(paths, (300, 60, 60), strict=True):
        rows = []
        for _ in range(count):
            place, kind = random.choice(["beach", "hill"]), random.choice(["a", "b"])
            words = {"beach": ["sun", "sea", "sand"], "hill": ["snow", "wood", "sun"]}[place]
            rows.append({"text": " ".join(random.choice(words, 4)), "place": place, "kind": kind})
        files.write_rows(path, rows)
    return paths


@pytest.fixture
def run(tmp_path: Path, tables: tuple[Path, Path, Path]) -> Run:
    sizes = {"embedding_size": 8, "hidden_size": 8, "context_size": 4, "variable_size": 4, "rank": 2, "epochs": 4.0}
    config = Config.of(context=("place", "kind"), min_count=1, min_context_count=2, learning_rate=0.01, **sizes)
    return train_run(tables[0], tables[1], config, tmp_path / "run")


def test_the_linear_baseline_of_a_run_is_that_of_its_training_table(run: Run, tables: tuple[Path, Path, Path]) -> None:
    train, _, test = tables
    options: dict[str, Any] = {"tokenizer": run.tokenizer, "context": ["kind"]}
    expected = classify_with_linear_baseline(*read_train_and_test(train, test, "place", run.config, **options))
    result = classify(run, test, "place", values=["hill", "beach"])
    names = [result.names[index] for index in result.other_predictions["linear baseline"]]
    assert names == [expected.names[index] for index in expected.predicted]
    metrics = result.metrics()
    row = metrics["others"][-1]
    assert (row["classifier"], row["accuracy"]) == ("linear baseline", expected.metrics()["accuracy"])
    assert metrics["linear_accuracy"] == row["accuracy"]
    assert row["difference_low"] <= row["difference"] <= row["difference_high"]
    assert row["difference"] == pytest.approx(metrics["accuracy"] - row["accuracy"])


def test_users_and_targets_with_many_values_get_no_baseline(tmp_path: Path, tables: tuple[Path, Path, Path]) -> None:
    rows = [{**row, "who": f"u{index % 3}"} for index, row in enumerate(files.read_rows(tables[0]))]
    config = Config.of(context=("place",), user="who", min_count=1, min_context_count=2, epochs=0.1, hidden_size=4)
    run = train_run(rows, rows, config, tmp_path / "users")
    assert list(linear_classifier.load(run.folder / BASELINES_FILE, run.schema)) == ["place"]
    with pytest.raises(
        UserError, match=r"combination: .*: no linear baseline of who \(3 values\); `factorcell baseline"
    ):
        classify(run, rows, "who", combine=True, calibrate=rows)


def test_a_combination_is_a_product_of_powers(run: Run, tables: tuple[Path, Path, Path]) -> None:
    _, dev, test = tables
    result = classify(run, test, "place", combine=True, calibrate=dev)
    assert result.combination_weights is not None
    uniform, conditional = (classify(run, test, "place", priors=name) for name in ("uniform", "conditional"))
    assert conditional.log_prior is not None
    options: dict[str, Any] = {"tokenizer": run.tokenizer, "context": ["kind"]}
    train_and_test = read_train_and_test(tables[0], test, "place", run.config, **options)
    linear = classify_with_linear_baseline(*train_and_test)
    assert linear.names == result.names
    temperature = classify(run, test, "place", priors="uniform", calibrate=dev).temperature
    assert temperature is not None
    log_probs = {
        "likelihood": uniform.at_temperature(temperature).log_posterior,
        "conditional prior": conditional.log_prior,
        "linear baseline": linear.log_posterior,
    }
    expected = weighted_posterior(result.combination_weights, log_probs)
    np.testing.assert_allclose(result.log_posterior, expected, atol=1e-4)
    assert list(result.other_predictions)[:3] == [
        f"model, {priors} priors" for priors in ("conditional", "training", "uniform")
    ]
    for name, plain in (("conditional", conditional), ("uniform", uniform)):
        assert (result.other_predictions[f"model, {name} priors"] == plain.predicted).all()
    metrics = result.metrics()
    assert metrics["accuracy"] >= metrics["others"][0]["accuracy"] - 0.05
    assert metrics["temperature"] is None
    without_prior = classify(run, test, "place", combine=True, calibrate=dev, priors="uniform")
    assert without_prior.combination_weights is not None
    assert list(without_prior.combination_weights) == ["likelihood", "linear baseline"]


def test_an_impossible_combination_is_an_error(run: Run, tables: tuple[Path, Path, Path]) -> None:
    _, dev, test = tables
    with pytest.raises(UserError, match=r"combination: expected a table of held-out texts .*; add --calibrate DEV"):
        classify(run, test, "place", combine=True)
    (run.folder / "linear.safetensors").unlink()
    with pytest.raises(
        UserError, match=r"combination: .*: no linear baseline of place \(2 values\); train the run again"
    ):
        classify(run, test, "place", combine=True, calibrate=dev)
    result = classify(run, test, "place")
    assert result.metrics()["linear_accuracy"] is None


def test_results_have_the_kind_of_their_classifier(run: Run, tables: tuple[Path, Path, Path]) -> None:
    calibrations: list[dict[str, Any]] = [{}, {"calibrate": tables[1]}, {"calibrate": tables[1], "combine": True}]
    metrics = [classify(run, tables[2], "place", **options).metrics() for options in calibrations]
    assert [row["classifier"] for row in metrics] == ["model", "calibrated", "combined"]
    assert list(metrics[-1]["combination_weights"]) == ["likelihood", "conditional prior", "linear baseline"]


def test_classify_prints_and_saves_the_combination(
    run: Run, tables: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, dev, test = map(str, tables)
    command = ["classify", str(run.folder), test, "--target", "place"]
    assert main([*command, "--combine", "--calibrate", dev, "--save"]) == 0
    output = capsys.readouterr().out
    assert "accuracy" in output.splitlines()[0]
    assert "weights: likelihood " in output
    assert any(line.startswith("linear baseline") for line in output.splitlines())
    assert saved_results.read(run.folder)[-1]["classifier"] == "combined"
    assert main([*command[:3], "--points", test, "--combine"]) == 2
    assert "require --target COLUMN" in capsys.readouterr().err
    assert main([*command, "--combine"]) == 2
    assert "add --calibrate DEV" in capsys.readouterr().err
    tables[0].unlink()
    assert main(command) == 0
    assert "linear baseline" in capsys.readouterr().out
    (run.folder / "linear.safetensors").unlink()
    assert main(command) == 0
    assert f"{run.folder}: no linear baseline of place (2 values); train the run again" in capsys.readouterr().err

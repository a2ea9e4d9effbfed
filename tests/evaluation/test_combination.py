"""The linear baseline of a run, and its combination with the model, against a grid search over weights."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import files
from factorcell.commands.main import main
from factorcell.config import Config, UserError
from factorcell.evaluation.baselines import LinearClassifier, read_train_and_test
from factorcell.evaluation.bayes_rule import apply_temperature, value_nats
from factorcell.evaluation.classification import classify
from factorcell.evaluation.combination import (
    LinearBaseline,
    fit_combination,
    relative_path,
    training_table,
    weighted_posterior,
)
from factorcell.model.run import Run, training_facts
from factorcell.training.fit import fit
from tests.small_runs import ROWS, make_run


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


def test_the_path_of_the_training_table_is_relative_to_the_run(tmp_path: Path) -> None:
    table = tmp_path / "data" / "train.jsonl"
    assert relative_path(table, tmp_path / "runs" / "small") == "../../data/train.jsonl"
    assert relative_path(ROWS, tmp_path) is None
    run = make_run(tmp_path / "runs" / "small")
    assert training_table(run) is None
    files.write_json(run.folder / "training.json", {"path": "../../data/train.jsonl"})
    assert training_table(run) is None  # it does not exist
    table.parent.mkdir()
    files.write_rows(table, ROWS)
    assert training_table(run) == table.resolve()


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
    return fit(tables[0], tables[1], config, tmp_path / "run")


def test_the_linear_baseline_of_a_run_is_that_of_its_training_table(run: Run, tables: tuple[Path, Path, Path]) -> None:
    train, _, test = tables
    options: dict[str, Any] = {"tokenizer": run.tokenizer, "context": ["kind"]}
    corpora = read_train_and_test(train, test, "place", run.config, **options)
    expected = LinearClassifier(corpora[0])(corpora[1])
    result = classify(run, test, "place", train=train, values=["hill", "beach"])
    name = "linear baseline (reads n-grams of up to 2 words, kind)"
    names = [result.names[index] for index in result.other_predictions[name]]
    assert names == [expected.names[index] for index in expected.predicted]
    row = result.metrics()["others"][-1]
    assert (row["classifier"], row["accuracy"]) == (name, expected.metrics()["accuracy"])
    assert row["difference_low"] <= row["difference"] <= row["difference_high"]
    assert row["difference"] == pytest.approx(result.metrics()["accuracy"] - row["accuracy"])


def test_the_linear_baseline_and_the_command_read_rare_values_alike(
    tmp_path: Path, tables: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev, test = tables
    for path in tables:  # every second `kind` becomes a rare value if the place is a beach; all values of `id` are rare
        rows = [{**row, "id": f"{path.stem} {index}"} for index, row in enumerate(files.read_rows(path))]
        rare = [row["place"] == "beach" and index % 2 == 1 for index, row in enumerate(rows)]
        kinds = [row["id"] if is_rare else row["kind"] for row, is_rare in zip(rows, rare, strict=True)]
        files.write_rows(path, [{**row, "kind": kind} for row, kind in zip(rows, kinds, strict=True)])
    context = ["kind", "id"]
    config = Config.of(context=("place", *context), min_count=1, min_context_count=2, epochs=0.1, hidden_size=4)
    run = fit(train, dev, config, tmp_path / "run")
    corpora = read_train_and_test(train, test, "place", run.config, tokenizer=run.tokenizer, context=context)
    expected = LinearClassifier(corpora[0])(corpora[1])
    baseline = LinearBaseline.fit(run, train, "place", context)
    assert baseline.name == "linear baseline (reads n-grams of up to 2 words, kind)"
    posterior = baseline.log_posterior(run.prepare(test, unknown="group"), expected.names)
    np.testing.assert_allclose(posterior, expected.log_posterior, atol=1e-6)
    without_id = read_train_and_test(train, test, "place", run.config, tokenizer=run.tokenizer, context=["kind"])
    np.testing.assert_allclose(LinearClassifier(without_id[0])(without_id[1]).log_posterior, posterior, atol=1e-6)
    text_only = read_train_and_test(train, test, "place", run.config, tokenizer=run.tokenizer)
    assert not np.allclose(LinearClassifier(text_only[0])(text_only[1]).log_posterior, posterior, atol=0.1)
    command = ["baseline", "linear", str(train), "--test", str(test), "--target", "place", "--like", str(run.folder)]
    assert main([*command, "--context", "kind", "--context", "id"]) == 0
    notices = capsys.readouterr().err
    assert "the classifier reads n-grams of up to 2 words, kind\nit ignores id: all training texts" in notices


def test_a_combination_is_a_product_of_powers(run: Run, tables: tuple[Path, Path, Path]) -> None:
    _, dev, test = tables
    result = classify(run, test, "place", combine=True, calibrate=dev)
    assert result.combination_weights is not None
    uniform, conditional = (classify(run, test, "place", priors=name) for name in ("uniform", "conditional"))
    assert conditional.log_prior is not None
    options: dict[str, Any] = {"tokenizer": run.tokenizer, "context": ["kind"]}
    train_and_test = read_train_and_test(tables[0], test, "place", run.config, **options)
    linear = LinearClassifier(train_and_test[0])(train_and_test[1])
    assert linear.names == result.names
    log_probs = {
        "likelihood": uniform.log_posterior,
        "conditional prior": conditional.log_prior,
        "linear classifier": linear.log_posterior,
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
    assert "temperature" not in metrics
    without_prior = classify(run, test, "place", combine=True, calibrate=dev, priors="uniform")
    assert without_prior.combination_weights is not None
    assert list(without_prior.combination_weights) == ["likelihood", "linear classifier"]


def test_the_linear_baseline_reads_only_columns_of_the_texts(run: Run, tables: tuple[Path, Path, Path]) -> None:
    texts = [{"text": row["text"], "place": row["place"]} for row in files.read_rows(tables[2])]
    result = classify(run, texts, "place", train=tables[0], unknown="expected")
    corpora = read_train_and_test(tables[0], texts, "place", run.config, tokenizer=run.tokenizer)
    expected = LinearClassifier(corpora[0])(corpora[1])
    row = result.metrics()["others"][-1]
    assert (row["classifier"], row["accuracy"]) == (
        "linear baseline (reads n-grams of up to 2 words)",
        expected.metrics()["accuracy"],
    )


def test_an_impossible_combination_is_an_error(run: Run, tables: tuple[Path, Path, Path], tmp_path: Path) -> None:
    train, dev, test = tables
    with pytest.raises(UserError, match=r"combination: expected a table of held-out texts .*; add --calibrate DEV"):
        classify(run, test, "place", combine=True)
    with pytest.raises(UserError, match=r"rows: expected texts with at least two values of place, got fewer"):
        classify(run, test, "place", train=[{"text": "sun", "place": "hill"}])
    with pytest.raises(UserError, match="no column 'place'"):
        classify(run, test, "place", train=[{"text": "sun"}])
    train.rename(tmp_path / "moved.jsonl")
    with pytest.raises(UserError, match=r"combination: the training table that .* does not exist; add --train TABLE"):
        classify(run, test, "place", combine=True, calibrate=dev)
    assert training_facts(run.folder)["path"] == "../train.jsonl"


def test_classify_prints_and_saves_the_combination(
    run: Run, tables: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, dev, test = map(str, tables)
    command = ["classify", str(run.folder), test, "--target", "place"]
    assert main([*command, "--combine", "--calibrate", dev]) == 0
    output = capsys.readouterr().out
    assert "weights of the combination, fitted on the development texts: likelihood " in output
    assert "accuracy" in output.splitlines()[0]
    assert any(line.startswith("linear baseline") for line in output.splitlines())
    assert "accuracy of place, model, conditional priors, combined with a linear classifier" in (
        run.folder / "README.md"
    ).read_text(encoding="utf-8")
    assert main([*command[:3], "--points", test, "--combine"]) == 2
    assert "--combine requires --target COLUMN" in capsys.readouterr().err
    assert main([*command, "--combine"]) == 2
    assert "add --calibrate DEV" in capsys.readouterr().err
    tables[0].unlink()
    assert main([*command, "--verbose"]) == 0
    assert f"no linear baseline: {run.folder} records no existing training table" in capsys.readouterr().err

"""Mixtures: weights against exhaustive searches, nats against explicit sums, and models that cannot be mixed."""

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.errors import UserError
from factorcell.evaluation.perplexity import evaluate
from factorcell.io import files
from factorcell.nn.scoring import mixed_nats
from factorcell.runs.run import Run
from factorcell.training.mixture import (
    PRIOR_TARGETS,
    MixedModels,
    _choose_components,
    fit_weights,
    fit_weights_by_group,
    mix,
    open_scorer,
)
from tests import small_runs

Array = np.ndarray[Any, np.dtype[np.float64]]


def likelihood(nats: Array, weights: Array, prior: Array) -> float:
    """Return the logarithm of the objective of EM, computed from probabilities."""
    has_prior = prior > 0
    return float(np.log(np.exp(-nats) @ weights).sum() + (prior[has_prior] * np.log(weights[has_prior])).sum())


def golden_section(nats: Array, prior: Array) -> float:
    """Return the first of two weights that maximize the likelihood, by golden-section search."""
    low, high, ratio = 0.0, 1.0, (5**0.5 - 1) / 2
    for _ in range(80):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        values = [likelihood(nats, np.array([w, 1 - w]), prior) for w in (left, right)]
        low, high = (left, high) if values[0] < values[1] else (low, right)
    return (low + high) / 2


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("strength", [0.0, 20.0])
def test_weights_of_two_models_agree_with_golden_section_search(seed: int, strength: float) -> None:
    generator = np.random.default_rng(seed)
    nats = generator.exponential(2.0, (300, 2)) + np.array([0.0, 0.2 * seed])
    prior = strength * np.array([0.3, 0.7])
    weights = fit_weights(nats, prior)
    assert weights[0] == pytest.approx(golden_section(nats, prior), abs=5e-4)
    assert weights.sum() == pytest.approx(1, abs=1e-12)


def test_weights_of_three_models_agree_with_a_grid_search() -> None:
    generator = np.random.default_rng(1)
    nats = generator.exponential(2.0, (200, 3)) + np.array([0.0, 0.1, 0.3])
    prior = np.array([4.0, 0.0, 9.0])
    weights = fit_weights(nats, prior)
    steps = np.linspace(0.005, 0.99, 198)
    grid = [np.array([a, b, 1 - a - b]) for a, b in itertools.product(steps, steps) if a + b < 1]
    values = [likelihood(nats, each, prior) for each in grid]
    assert likelihood(nats, weights, prior) >= max(values)
    assert np.allclose(weights, grid[int(np.argmax(values))], atol=0.01)


def test_weights_of_degenerate_mixtures() -> None:
    generator = np.random.default_rng(3)
    nats = generator.exponential(2.0, (50, 1))
    assert fit_weights(nats).tolist() == [1.0]
    assert np.array_equal(mixed_nats(nats, np.ones(1)), nats[:, 0])
    worse = fit_weights(np.concatenate([nats, nats + 1], axis=1))
    assert worse[1] < 1e-6
    same = np.concatenate([nats, nats], axis=1)
    assert np.allclose(fit_weights(same), 0.5)
    assert np.allclose(mixed_nats(same, np.array([0.2, 0.8])), nats[:, 0])
    empty = np.zeros((0, 3))
    assert np.allclose(fit_weights(empty), 1 / 3)
    assert np.allclose(fit_weights(empty, np.array([1.0, 2.0, 5.0])), [1 / 8, 2 / 8, 5 / 8])
    far = np.array([[1000.0, 1001.0], [2000.0, 1999.0]])
    assert np.allclose(fit_weights(far), 0.5)
    assert np.allclose(mixed_nats(far, np.array([0.5, 0.5])), np.array([1000.0, 1999.0]) - np.log(0.5 + 0.5 / np.e))


def test_weights_of_a_group_are_near_those_of_all_targets() -> None:
    generator = np.random.default_rng(4)
    nats, groups = generator.exponential(2.0, (300, 2)), np.repeat([0, 1], [260, 40])
    nats[groups == 1, 0] += 1.5
    of_all_targets = golden_section(nats, np.zeros(2))
    prior = PRIOR_TARGETS * np.array([of_all_targets, 1 - of_all_targets])
    weights = fit_weights_by_group(nats, groups, 3)
    for group in range(2):
        assert weights[group, 0] == pytest.approx(golden_section(nats[groups == group], prior), abs=1e-3)
    assert weights[2, 0] == pytest.approx(of_all_targets, abs=1e-3), "the group has no targets"


def test_no_target_is_predicted_with_weights_that_were_fitted_to_it() -> None:
    halves, groups = np.arange(400) % 2, np.zeros(400, np.int64)
    nats = np.random.default_rng(5).exponential(2.0, (400, 3)) + np.stack([halves, 1 - halves, 5 + halves], axis=1)
    columns, mixed = _choose_components(nats, groups, 1, halves)
    assert columns == [0, 1], "the third model improves no prediction"
    for half in range(2):
        fitted, predicted = nats[halves != half][:, :2], nats[halves == half][:, :2]
        share = golden_section(fitted, PRIOR_TARGETS * fit_weights(fitted))
        expected = -np.log(np.exp(-predicted) @ [share, 1 - share])
        np.testing.assert_allclose(mixed[halves == half], expected, atol=2e-3)


def make_runs(folder: Path) -> list[Run]:
    """Return three runs with random weights and the same vocabulary, of which the last one reads no context."""
    contexts: list[tuple[str, ...]] = [small_runs.CONTEXT, small_runs.CONTEXT, ()]
    runs = [small_runs.make_run(folder / f"run{number}", context) for number, context in enumerate(contexts)]
    for run in runs:
        run.save_weights({})
    return runs


def folders(runs: list[Run]) -> list[Path]:
    return [run.folder for run in runs]


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return make_runs(tmp_path)


def expected_nats(runs: list[Run], row: dict[str, Any], weights: Array) -> Array:
    """Return the nats of a text from the weighted sum of the runs' probabilities."""
    parts = [np.exp(-np.array(small_runs.nats_of(run, row))) for run in runs]
    return np.asarray(-np.log(np.tensordot(weights, parts, 1)))


def test_nats_are_those_of_the_mixed_probabilities(runs: list[Run], tmp_path: Path) -> None:
    mixed, rows = mix(folders(runs), small_runs.ROWS, tmp_path / "mix", by="city")
    assert [row["value"] for row in rows] == ["all texts", *mixed.values]
    mean = np.average([row["weights"] for row in rows[1:]], axis=0, weights=[row["targets"] for row in rows[1:]])
    assert np.allclose(rows[0]["weights"], mean)
    with_rare = [*small_runs.ROWS, {**small_runs.ROWS[0], "city": "Bergen"}]
    again, rows_with_rare = mix(folders(runs), with_rare, tmp_path / "rare", by="city")
    assert [row["value"] for row in rows_with_rare] == ["all texts", "rare or missing", *again.values]
    assert np.allclose(rows_with_rare[1]["weights"], again.weights[0])
    assert set(mixed.values) == {"Oslo", "Nice"}
    corpus = mixed.prepare(small_runs.ROWS)
    expected: list[float] = []
    for row in small_runs.ROWS:
        number = 1 + mixed.values.index(row["city"])
        expected += expected_nats(runs, row, mixed.weights[number]).tolist()
    assert np.allclose(mixed.nats(corpus), expected, atol=1e-5)
    assert np.allclose(mixed.weights.sum(axis=1), 1)
    assert not np.allclose(mixed.weights[1], mixed.weights[2], atol=1e-3)
    other = {**small_runs.ROWS[0], "city": "Bergen"}
    unseen = mixed.prepare([other], unknown="group")
    assert np.allclose(mixed.nats(unseen), expected_nats_of_unknown(runs, other, mixed.weights[0]), atol=1e-5)


def expected_nats_of_unknown(runs: list[Run], row: dict[str, Any], weights: Array) -> Array:
    """Return the nats of a text whose context value is grouped as unknown, from a weighted sum of probabilities."""
    parts = [np.exp(-run.nats(run.prepare([row], unknown="group")).astype(float)) for run in runs]
    return np.asarray(-np.log(np.tensordot(weights, parts, 1)))


def test_mixed_probabilities_of_all_next_tokens_sum_to_one(runs: list[Run], tmp_path: Path) -> None:
    mixed, _ = mix(folders(runs), small_runs.ROWS, tmp_path / "mix")
    total = 0.0
    for token in ("", *mixed.tokenizer.tokens[3:]):  # the text ends or continues after "sun"
        row = {**small_runs.ROWS[0], "text": f"sun {token}".strip()}
        total += float(np.exp(-mixed.nats(mixed.prepare([row]))[1]))
    row = {**small_runs.ROWS[0], "text": "sun neverseen"}
    total += float(np.exp(-mixed.nats(mixed.prepare([row]))[1]))
    assert total == pytest.approx(1, abs=1e-5)


def test_rows_have_the_perplexities_of_the_mixture_and_its_models(runs: list[Run], tmp_path: Path) -> None:
    mixed, rows = mix(folders(runs), small_runs.ROWS, tmp_path / "mix", by="stars")
    assert sum(row["targets"] for row in rows[1:]) == rows[0]["targets"]
    for number, run in enumerate(runs):
        nats = run.nats(run.prepare(small_runs.ROWS))
        assert rows[0]["alone"][number] == pytest.approx(float(np.exp(nats.mean())), rel=1e-5)
    plain, (row,) = mix(folders(runs), small_runs.ROWS, tmp_path / "plain")
    assert row["perplexity"] <= min(row["alone"]) + 1e-6
    assert rows[0]["perplexity"] < row["perplexity"], "each value has separate weights"
    assert np.allclose(plain.weights[0], mixed.weights[0], atol=1e-3)
    mean = np.average([row["weights"] for row in rows[1:]], axis=0, weights=[row["targets"] for row in rows[1:]])
    assert rows[0]["weights"] == pytest.approx(mean)


def test_a_saved_mixture_can_be_moved_with_its_runs(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "a")
    mixed, _ = mix(folders(runs), small_runs.ROWS, tmp_path / "a" / "mix", by="city")
    expected = mixed.nats(mixed.prepare(small_runs.ROWS))
    shutil.move(tmp_path / "a", tmp_path / "b")
    opened = open_scorer(tmp_path / "b" / "mix")
    assert isinstance(opened, MixedModels)
    assert np.array_equal(opened.nats(opened.prepare(small_runs.ROWS)), expected)
    twice, _ = mix(
        [tmp_path / "b" / "mix", tmp_path / "b" / "run2"], small_runs.ROWS, tmp_path / "b" / "twice", by="stars"
    )
    again = open_scorer(tmp_path / "b" / "twice")
    corpus = again.prepare(small_runs.ROWS)
    assert np.array_equal(again.nats(corpus), twice.nats(corpus))
    inner = opened.nats(opened.prepare(small_runs.ROWS))
    plain = runs[2].nats(runs[2].prepare(small_runs.ROWS))
    stars = twice.schema.categories.index(twice.schema.variable("stars"))
    weights = np.repeat(twice.weights[corpus.categories[:, stars]], corpus.lengths, axis=0)
    assert np.allclose(twice.nats(corpus), mixed_nats(np.stack([inner, plain], 1).astype(float), weights), atol=1e-5)
    assert not list(Path(tmp_path / "b" / "mix").glob("*.safetensors"))
    assert files.read_json(tmp_path / "b" / "mix" / "mixture.json")["models"] == ["../run0", "../run1", "../run2"]


def test_a_mixture_in_a_linked_folder_finds_its_models(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "a")
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "deep")
    mixed, _ = mix(folders(runs), small_runs.ROWS, tmp_path / "link" / "mix")
    corpus = mixed.prepare(small_runs.ROWS)
    assert np.array_equal(open_scorer(tmp_path / "link" / "mix").nats(corpus), mixed.nats(corpus))


def test_a_mixture_as_a_baseline_reads_its_context(runs: list[Run], tmp_path: Path) -> None:
    mixed, _ = mix(folders(runs[:1]), small_runs.ROWS, tmp_path / "mix", by="city")
    row = evaluate(runs[0], small_runs.ROWS, baseline=mixed).row
    assert row["gain_over_baseline"] == pytest.approx(0, abs=1e-6)
    assert row["perplexity_baseline"] == pytest.approx(row["perplexity"])


def test_models_that_cannot_be_mixed_are_refused(runs: list[Run], tmp_path: Path) -> None:
    tokenizer = runs[2].tokenizer
    other = type(tokenizer)(tokenizer.options, [*tokenizer.tokens[:-1], "other"])
    other_vocabulary = Run(tmp_path / "other", runs[2].config, other, runs[2].schema)
    with pytest.raises(UserError, match=r"run0 and .*other: cannot mix models with different vocabularies"):
        MixedModels(tmp_path / "mix", [runs[0], other_vocabulary])
    data = dataclasses.replace(runs[2].config.data, max_tokens=4)
    shorter = Run(
        tmp_path / "shorter", dataclasses.replace(runs[2].config, data=data), runs[2].tokenizer, runs[2].schema
    )
    with pytest.raises(UserError, match=r"run0 and .*shorter: cannot mix models that read texts differently"):
        MixedModels(tmp_path / "mix", [runs[0], shorter])
    other_columns = small_runs.make_run(tmp_path / "columns", ("city",))
    with pytest.raises(UserError, match=r"run0 and .*columns: cannot mix models with different context columns"):
        MixedModels(tmp_path / "mix", [runs[0], other_columns])
    with pytest.raises(UserError, match="town"):
        mix(folders(runs), small_runs.ROWS, tmp_path / "mix", by="town")
    with pytest.raises(UserError, match="at least one model"):
        mix([], small_runs.ROWS, tmp_path / "mix")
    assert not (tmp_path / "mix").exists()
    with pytest.raises(UserError, match="run0: exists already"):
        mix(folders(runs), small_runs.ROWS, runs[0].folder)
    with pytest.raises(UserError, match="nothing: expected a run folder, got a path that does not exist"):
        open_scorer(tmp_path / "nothing")

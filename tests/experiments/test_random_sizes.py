"""The analysis of models with random sizes recovers the law that generated the rows."""

from typing import Any

import numpy as np
import pytest

import random_sizes
import variations
from correlations import correlation

LARGER, RANK, LONGER, ONE_HOT = random_sizes.CHANGES


def make_rows(size: float, rank: float, noise: float = 0.0) -> list[dict[str, Any]]:
    """Make models whose log perplexity is 5 + size log W + rank r."""
    random, result = np.random.default_rng(0), []
    for name, options in variations.EXPERIMENTS["tacl_trials_dbpedia"].rows.items():
        model = {"row": name, "seed": 0, "accuracy": 0.5, "config": options, "sums": {}}
        model_rank = options["model"]["rank"] if name.startswith("factorcell") else 0
        logs = 5 + size * np.log(random_sizes.recurrent_weights(model)) + rank * model_rank + noise * random.normal()
        result.append({**model, "perplexity_known": float(np.exp(logs))})
    return result


def test_effects_recover_the_law_of_the_rows() -> None:
    """The other drawn options also change perplexities and accuracies."""
    models = make_rows(-0.1, -0.003)
    for row in models:
        model, dropout = row["config"]["model"], row["config"]["backbone"]["dropout_recurrent"]
        row["perplexity_known"] *= float(np.exp(dropout - 0.01 * random_sizes.has_one_hot_bias(row)))
        row["accuracy"] += 0.04 * random_sizes.has_one_hot_bias(row) - 0.02 * np.log2(model["context_size"])
    gains, accuracies = zip(*random_sizes.effects(models).values(), strict=True)
    assert [effect.point for effect in gains] == pytest.approx([1 - 2**-0.1, 1 - np.exp(-0.06), 0, 1 - np.exp(-0.01)])
    assert [effect.point for effect in accuracies] == pytest.approx([0, 0, -0.02, 0.04])
    assert random_sizes.effects(models[:6]) == {}
    assert ONE_HOT not in random_sizes.effects([row for row in models if not random_sizes.has_one_hot_bias(row)])


def test_noise_widens_the_interval() -> None:
    gain, _ = random_sizes.effects(make_rows(-0.1, -0.003, noise=0.02))[RANK]
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low < 1 - np.exp(-0.06) < gain.high
    assert random_sizes.effects(make_rows(-0.1, 0.0, noise=0.02))[RANK][0].sign == 0


def test_correlations_within_groups_ignore_their_means() -> None:
    random = np.random.default_rng(1)
    first, groups = random.normal(size=30), [n % 3 for n in range(30)]
    second = first + 0.1 * random.normal(size=30)
    shifted = second + 100 * np.array(groups)
    result = random_sizes.correlation_within_groups(first.tolist(), shifted.tolist(), groups)
    assert result == pytest.approx(random_sizes.correlation_within_groups(first.tolist(), second.tolist(), groups))
    assert result["r"] > 0.9
    assert result["low"] < result["r"] < result["high"]
    assert random_sizes.correlation_within_groups([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], [0, 0, 1])["low"] is None


def test_models_that_share_sizes_are_drawn_together() -> None:
    """Copies of models do not narrow the interval of a correlation."""
    models = random_sizes.of_class(make_rows(-0.1, 0.0), "softmaxbias")
    random = np.random.default_rng(2)
    first, second = random.normal(size=(2, len(models)))
    second += first
    assert random_sizes.correlation_over_models(first.tolist(), second.tolist(), models) == correlation(
        first.tolist(), second.tolist()
    )

    def correlate_copies(count: int) -> dict[str, Any]:
        copied_rows = [
            {**row, "row": row["row"].replace("softmaxbias", f"x{n}")} for n in range(count) for row in models
        ]
        return random_sizes.correlation_over_models(
            np.tile(first, count).tolist(), np.tile(second, count).tolist(), copied_rows
        )

    two_copies, nine_copies = correlate_copies(2), correlate_copies(9)
    assert {key: two_copies[key] for key in ("r", "low", "high")} == pytest.approx(
        {key: nine_copies[key] for key in ("r", "low", "high")}
    )
    assert two_copies["low"] < two_copies["r"] < two_copies["high"]

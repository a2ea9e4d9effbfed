"""Analysis of models of random sizes: it recovers the law that made the rows."""

from typing import Any

import numpy as np
import pytest

import random_sizes
import variations
from factorcell.evaluation.statistics import correlation

LARGER, RANK, LONGER, EACH = random_sizes.CHANGES


def rows(size: float, rank: float, noise: float = 0.0) -> list[dict[str, Any]]:
    """Make models whose log perplexity is 5 + size log W + rank r."""
    random, made = np.random.default_rng(0), []
    for name, options in variations.EXPERIMENTS["tacl_trials_dbpedia"].rows.items():
        own = {"row": name, "seed": 0, "accuracy": 0.5, "config": options, "sums": {}}
        ranks = options["model"]["rank"] if name.startswith("factorcell") else 0
        logs = 5 + size * np.log(random_sizes.recurrent_weights(own)) + rank * ranks + noise * random.normal()
        made.append({**own, "perplexity_known": float(np.exp(logs))})
    return made


def test_effects_are_those_of_the_law() -> None:
    """Whatever else is drawn moves perplexities and accuracies."""
    made = rows(-0.1, -0.003)
    for row in made:
        model, dropout = row["config"]["model"], row["config"]["backbone"]["dropout_recurrent"]
        row["perplexity_known"] *= float(np.exp(dropout - 0.01 * random_sizes.one_hot(row)))
        row["accuracy"] += 0.04 * random_sizes.one_hot(row) - 0.02 * np.log2(model["context_size"])
    saved, brought = zip(*random_sizes.effects(made).values(), strict=True)
    assert [one.point for one in saved] == pytest.approx([1 - 2**-0.1, 1 - np.exp(-0.06), 0, 1 - np.exp(-0.01)])
    assert [one.point for one in brought] == pytest.approx([0, 0, -0.02, 0.04])
    assert random_sizes.effects(made[:6]) == {}
    assert EACH not in random_sizes.effects([row for row in made if not random_sizes.one_hot(row)])


def test_noise_widens_the_interval() -> None:
    saved, _ = random_sizes.effects(rows(-0.1, -0.003, noise=0.02))[RANK]
    assert saved.low is not None
    assert saved.high is not None
    assert saved.low < 1 - np.exp(-0.06) < saved.high
    assert random_sizes.effects(rows(-0.1, 0.0, noise=0.02))[RANK][0].sign == 0


def test_correlations_within_groups_ignore_their_means() -> None:
    random = np.random.default_rng(1)
    first, groups = random.normal(size=30), [n % 3 for n in range(30)]
    second = first + 0.1 * random.normal(size=30)
    shifted = second + 100 * np.array(groups)
    found = random_sizes.within(first.tolist(), shifted.tolist(), groups)
    assert found == pytest.approx(random_sizes.within(first.tolist(), second.tolist(), groups))
    assert found["r"] > 0.9
    assert found["low"] < found["r"] < found["high"]
    assert random_sizes.within([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], [0, 0, 1])["low"] is None


def test_models_that_share_sizes_are_drawn_together() -> None:
    """Copies of the same models do not make a correlation more certain."""
    own = random_sizes.of_class(rows(-0.1, 0.0), "softmaxbias")
    random = np.random.default_rng(2)
    first, second = random.normal(size=(2, len(own)))
    second += first
    assert random_sizes.correlated(first.tolist(), second.tolist(), own) == correlation(first.tolist(), second.tolist())

    def copies(count: int) -> dict[str, Any]:
        twins = [{**row, "row": row["row"].replace("softmaxbias", f"x{n}")} for n in range(count) for row in own]
        return random_sizes.correlated(np.tile(first, count).tolist(), np.tile(second, count).tolist(), twins)

    two, nine = copies(2), copies(9)
    assert {key: two[key] for key in ("r", "low", "high")} == pytest.approx(
        {key: nine[key] for key in ("r", "low", "high")}
    )
    assert two["low"] < two["r"] < two["high"]

"""The known truth of the two dialects, against brute force and against samples."""

import itertools
import math

import numpy as np
import pytest

from tests.synthetic import NAMES, Array, Dialects, dialects, entropy, two_dialects


def tiny() -> Dialects:
    """One short-lived dialect of two words beside another, so that nearly all texts can be written out."""
    start = np.array([[0.7, 0.3], [0.1, 0.9]])
    moves = np.array([[[0.2, 0.1, 0.7], [0.3, 0.0, 0.7]], [[0.0, 0.4, 0.6], [0.1, 0.1, 0.8]]])
    return Dialects(("a", "b"), NAMES, start, moves)


def ratio_and_error(chains: Dialects, rows: list[dict[str, str]]) -> tuple[float, float]:
    """Nats per target of a sample, and the standard error of that ratio."""
    nats = np.array([chains.nats(row["text"])[chains.names.index(row["dialect"])] for row in rows])
    targets = np.array([len(row["text"].split()) + 1 for row in rows])
    ratio = nats.sum() / targets.sum()
    error = math.sqrt(float(((nats - ratio * targets) ** 2).sum())) / float(targets.sum())
    return float(ratio), error


def test_chains_are_distributions() -> None:
    chains = dialects()
    np.testing.assert_allclose(chains.start.sum(-1), 1)
    np.testing.assert_allclose(chains.moves.sum(-1), 1)
    assert (chains.moves[:, :, -1] > 0).all()


def test_expectation_equals_sum_over_all_texts() -> None:
    chains = tiny()
    mass, nats, targets = np.zeros(2), np.zeros(2), np.zeros(2)
    for length in range(1, 14):
        for words in itertools.product("ab", repeat=length):
            cost = chains.nats(" ".join(words))
            probability = np.exp(-cost)
            mass += probability
            nats += probability * np.where(probability > 0, cost, 0)
            targets += probability * (length + 1)
    np.testing.assert_allclose(mass, 1, atol=1e-6)
    np.testing.assert_allclose(chains.expectation(), (nats, targets), atol=2e-5)
    assert chains.perplexity() == pytest.approx(math.exp(nats.sum() / targets.sum()), abs=1e-4)


def test_entropy_of_known_distributions() -> None:
    np.testing.assert_allclose(entropy(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])), [math.log(2), 0])


def test_sample_mean_approaches_the_truth() -> None:
    chains = dialects()
    rows, perplexity = two_dialects(6000, seed=1)
    ratio, error = ratio_and_error(chains, rows)
    assert error < 0.01
    assert abs(ratio - math.log(perplexity)) < 4 * error
    # The same sample tells the truth from its neighbours: the end token left out, or the dialects swapped.
    nats, targets = chains.expectation()
    assert abs(ratio - nats.sum() / (targets - 1).sum()) > 4 * error
    swapped = Dialects(chains.words, NAMES, chains.start[::-1], chains.moves[::-1])
    assert ratio_and_error(swapped, rows)[0] - ratio > 4 * error


def test_sample_follows_seed_and_holds_both_dialects() -> None:
    rows, truth = two_dialects(400, seed=3)
    assert rows == two_dialects(400, seed=3)[0]
    other, same = two_dialects(400, seed=4)
    assert rows != other
    assert truth == same
    share = sum(row["dialect"] == NAMES[0] for row in rows) / len(rows)
    assert 0.4 < share < 0.6
    assert max(len(row["text"].split()) for row in rows) < 200


def test_dialect_matters_and_can_be_learned_by_counting() -> None:
    train, perplexity = two_dialects(4000, seed=5)
    dev, _ = two_dialects(2000, seed=6)
    assert counted_perplexity(train, dev, known=True) == pytest.approx(perplexity, rel=0.02)
    assert counted_perplexity(train, dev, known=False) > 1.2 * perplexity


def counted_perplexity(train: list[dict[str, str]], dev: list[dict[str, str]], known: bool) -> float:
    """Perplexity on `dev` of bigram counts with a tenth of a count added, given the dialect or not."""
    chains = dialects()
    places = {word: place for place, word in enumerate((*chains.words, ""))}
    counts = np.full((2, len(places), len(places)), 0.1)
    for row in train:
        add_bigrams(counts[NAMES.index(row["dialect"]) if known else 0], row["text"], places)
    log_p = np.log(counts / counts.sum(-1, keepdims=True))
    seen = np.zeros_like(counts)
    for row in dev:
        add_bigrams(seen[NAMES.index(row["dialect"]) if known else 0], row["text"], places)
    return math.exp(-float((seen * log_p).sum()) / float(seen.sum()))


def add_bigrams(table: Array, text: str, places: dict[str, int]) -> None:
    """Count the pairs of `text` in `table` (W + 1, W + 1); last row the start, last column the end."""
    words = ["", *text.split(), ""]
    for a, b in itertools.pairwise(words):
        table[places[a], places[b]] += 1

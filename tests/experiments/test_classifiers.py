"""Naive Bayes against counts in dictionaries, and fastText."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from classifiers import FastText, NaiveBayes
from factorcell.config import Config
from factorcell.evaluation.linear_classifier import read_train_and_test

Dialects = Callable[[int, int], tuple[list[dict[str, str]], float]]

CONFIG = Config.of(min_count=1, min_context_count=2)
TRAIN = [
    {"text": "sun sun sand", "place": "beach"},
    {"text": "sea sun", "place": "beach"},
    {"text": "", "place": "beach"},
    {"text": "snow ice snow", "place": "hill"},
    {"text": "sun snow wood wood wood", "place": "hill"},
    {"text": "sand wood", "place": "desert"},
]
TEST = [{"text": "sun sand sand", "place": "beach"}, {"text": "never seen snow", "place": "hill"}]


def test_naive_bayes_is_bayes_rule_over_counts() -> None:
    train, test = read_train_and_test(TRAIN, TEST, "place", CONFIG)
    result = NaiveBayes(train)(test)
    counts: dict[str, Counter[int]] = {name: Counter() for name in result.names}
    for row, text in zip(TRAIN, np.split(train.tokens, train.offsets[1:-1]), strict=True):
        if row["place"] in counts:
            counts[row["place"]].update(text[1:].tolist())
    tokens = [token for token in range(len(train.tokenizer)) if token != train.tokenizer.specials.start]
    for index, text in enumerate(np.split(test.tokens, test.offsets[1:-1])):
        joint = []
        for name in result.names:
            total = sum(counts[name][token] + 0.5 for token in tokens)
            joint.append(sum(math.log((counts[name][token] + 0.5) / total) for token in text[1:].tolist()))
        np.testing.assert_allclose(result.probabilities[index], np.exp(joint) / np.exp(joint).sum(), rtol=1e-9)


def test_fasttext_gives_posteriors_and_is_reproducible(two_dialects: Dialects) -> None:
    train, test = read_train_and_test(
        two_dialects(200, 1)[0], [{"text": "", "dialect": "coast"}, *two_dialects(30, 2)[0]], "dialect", CONFIG
    )
    first, again = (FastText(train, seed=4)(test) for _ in range(2))
    np.testing.assert_allclose(first.probabilities.sum(1), 1, atol=1e-3)
    np.testing.assert_array_equal(first.log_posterior, again.log_posterior)
    assert not np.array_equal(first.log_posterior, FastText(train, seed=5)(test).log_posterior)

"""Conditional n-gram models against formulas over dictionaries."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.evaluation.advice.conditional_ngram import (
    IndexedTexts,
    ValueNGram,
    compute_log_posterior,
    fit_exponents,
    tilted_log_probs,
)
from factorcell.ngram import ngram
from factorcell.ngram.ngram import NGram
from tests import synthetic

Dialects = Callable[[int, int], tuple[list[dict[str, str]], float]]
CONFIG = Config.of(context=["dialect"], min_count=1, min_context_count=1)
MISSING = 2


class Case:
    """Corpora, labels and base model for texts of two dialects, with some missing labels."""

    def __init__(self, rows: list[dict[str, str]], counted: int, order: int = 3) -> None:
        self.corpus = prepare(rows, CONFIG)
        self.names = self.corpus.schema.categories[0].values[1:]
        labels = self.corpus.categories[:, 0].astype(np.int64) - 1
        self.labels = np.where(np.arange(len(labels)) % 9 == 4, MISSING, labels)
        parts = np.split(np.arange(len(labels)), [counted, counted + (len(labels) - counted) // 2])
        self.train, self.tune, self.test = (self.corpus.select(part) for part in parts)
        self.of_train, self.of_tune, self.of_test = (self.labels[part] for part in parts)
        grams = ngram.count_ngrams(self.train, order)
        self.model = NGram(Path(), CONFIG.with_options(context=()), self.corpus.tokenizer, grams)

    def find(self, corpus: Corpus) -> IndexedTexts:
        return IndexedTexts.from_corpus(self.model, corpus)

    def fitted(self) -> ValueNGram:
        model = ValueNGram(self.model, self.find(self.train), self.of_train, 2)
        tune = self.find(self.tune)
        model.fit_prior(tune, self.of_tune)
        ratios = model.log_ratios()
        model.beta = float(fit_exponents(self.model, tune, [ratios], [self.of_tune])[0])
        bias_log_probs = tilted_log_probs(self.model, tune, [ratios], [self.of_tune], np.array([model.beta]))
        model.fit_longer(tune, self.of_tune, np.exp(bias_log_probs))
        return model


@pytest.fixture(scope="module")
def case() -> Case:
    return Case(synthetic.two_dialects(400, 5)[0], 300)


@pytest.fixture(scope="module")
def fitted(case: Case) -> ValueNGram:
    return case.fitted()


def words(corpus: Corpus) -> list[list[int]]:
    return [text.tolist() for text in np.split(corpus.tokens, corpus.offsets[1:-1])]


def test_log_probs_equal_the_formula_over_dictionaries(case: Case, fitted: ValueNGram) -> None:
    size, test = len(case.corpus.tokenizer), case.test.select(np.arange(6))
    unigrams: Counter[int] = Counter()
    counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(3)]
    before: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(3)]
    for text, label in zip(words(case.train), case.of_train, strict=True):
        unigrams.update(text[1:])
        for place in range(1, len(text)):
            for length in range(min(place, 2) + 1):
                if label < MISSING:
                    counts[label][tuple(text[place - length : place + 1])] += 1
                    before[label][tuple(text[place - length : place])] += 1
    total = sum(unigrams.values()) + 0.5 * size
    share = [(unigrams[token] + 0.5) / total for token in range(size)]
    texts = case.find(test)
    first, every = fitted.log_probs(texts)
    base = case.model.probabilities(texts.histories)
    row = 0
    for text in words(test):
        for place in range(1, len(text)):
            for value in range(3):
                alpha, value_total = fitted.alpha, sum(counts[value][token,] for token in range(size))
                ratio = [(counts[value][w,] + alpha * share[w]) / (value_total + alpha) / share[w] for w in range(size)]
                raised = [base[row][w] * ratio[w] ** fitted.beta for w in range(size)]
                probability = raised[text[place]] / sum(raised)
                assert first[row, value] == pytest.approx(math.log(probability), abs=2e-5)
                for length, weight in enumerate(fitted.alphas, 1):
                    if place >= length and math.isfinite(weight):
                        gram = tuple(text[place - length : place + 1])
                        probability = (counts[value][gram] + weight * probability) / (before[value][gram[:-1]] + weight)
                assert every[row, value] == pytest.approx(math.log(probability), abs=2e-5)
            row += 1
    np.testing.assert_allclose(first[:, MISSING], texts.base, atol=2e-5)
    assert any(map(math.isfinite, fitted.alphas))


def test_probabilities_of_true_values_equal_those_of_all_values(case: Case, fitted: ValueNGram) -> None:
    texts = case.find(case.test)
    first, every = fitted.log_probs(texts)
    rows, values = np.arange(len(every)), texts.repeat_per_target(case.of_test)
    assert MISSING in values
    true_probabilities = fitted.apply_longer(texts, case.of_test, np.exp(first[rows, values].astype(np.float64)))
    np.testing.assert_allclose(np.log(true_probabilities), every[rows, values], atol=2e-5)


def test_exponents_maximize_the_likelihood(case: Case, fitted: ValueNGram) -> None:
    tune, ratios, labels = case.find(case.tune), fitted.log_ratios(), case.of_tune
    (beta,) = fit_exponents(case.model, tune, [ratios], [labels])

    def likelihood(exponent: float) -> float:
        return float(tilted_log_probs(case.model, tune, [ratios], [labels], np.array([exponent])).sum())

    assert 0.1 < beta < 2
    assert likelihood(beta) > max(likelihood(beta + 0.01), likelihood(beta - 0.01))
    both = fit_exponents(case.model, tune, [ratios, ratios], [labels, labels])
    assert both.sum() == pytest.approx(beta, abs=2e-3)
    nothing = np.random.default_rng(0).permutation(labels)
    more = fit_exponents(case.model, tune, [ratios, ratios], [labels, nothing])
    assert more[1] < 0.3 * more[0]
    np.testing.assert_allclose(
        tilted_log_probs(case.model, tune, [ratios], [labels], np.zeros(1)), tune.base, atol=1e-5
    )


def test_the_posterior_equals_bayes_rule(case: Case, fitted: ValueNGram) -> None:
    texts = case.find(case.test)
    _, every = fitted.log_probs(texts)
    prior = np.log([0.3, 0.7])
    for row, (begin, end) in enumerate(zip(texts.starts[:-1], texts.starts[1:], strict=True)):
        joint = prior + every[begin:end, :2].sum(0, dtype=np.float64)
        expected = joint - np.logaddexp(*joint)
        np.testing.assert_allclose(compute_log_posterior(every, texts, prior, 1.0)[row], expected, atol=1e-5)
        early = prior + 0.5 * every[begin : min(end, begin + 2), :2].sum(0, dtype=np.float64)
        np.testing.assert_allclose(
            compute_log_posterior(every, texts, prior, 0.5, 2)[row], early - np.logaddexp(*early), atol=1e-5
        )

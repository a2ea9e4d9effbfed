"""Baseline text classifiers: naive Bayes, logistic regression on hashed n-grams, and fastText.

All classifiers read the token ids of a corpus, so that they see the same tokens as a language model with the same
vocabulary. Naive Bayes is generative, with one unigram model per value:

    p(v | text) ~ p(v) prod_t p(w_t | v),    p(w | v) = (c_v(w) + 0.5) / sum_w' (c_v(w') + 0.5)

The other two learn p(v | text) from n-gram features.

Shapes: B texts, K values, V vocabulary, F n-grams of all texts, U distinct hash buckets.
"""

import importlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from factorcell import limits
from factorcell.choices import PRIORS
from factorcell.config import Config, UserError, choose
from factorcell.data.cache import prepare
from factorcell.data.columns import check_columns
from factorcell.data.corpus import Corpus, extend_hashes, target_ids, target_offsets
from factorcell.data.tables import table_name
from factorcell.data.tokenizer import Tokenizer
from factorcell.evaluation.bayes_rule import Classification, apply_bayes_rule
from factorcell.model.scoring import Tally
from factorcell.progress import progress_bar

SMOOTHING = 0.5  # added to every count of naive Bayes
EPOCHS, BATCH, RATE = 3, 64, 0.5  # linear model: passes, texts per step, initial learning rate (decays linearly to 0)
CELLS = 1 << 25  # maximum number of weights of the linear model: buckets * values

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


def with_target(config: Config, target: str) -> Config:
    """Return the data and tokenizer options of `config` with the category `target` as the only context variable."""
    data = replace(config.data, context=(f"{target}:category",), user="", time="", anonymous=False)
    return Config(data=data, tokenizer=config.tokenizer)


def read_train_and_test(
    source: Any,
    table: Any,
    target: str,
    config: Config,
    *,
    tokenizer: Tokenizer | None = None,
    progress: bool = False,
) -> tuple[Corpus, Corpus]:
    """Read training and test texts with the category `target` as their only context variable.

    Raises:
        UserError: Training has fewer than two frequent values, or no test text has one of them.
    """
    config = with_target(config, target)
    check_columns(table, config.data)
    train = prepare(source, config, tokenizer=tokenizer, progress=progress)
    if len(train.schema.variable(target).values) < 3:
        count = config.data.min_context_count
        raise UserError(f"{target}: expected at least two values with {count} training texts each, got fewer")
    test = prepare(table, config, tokenizer=train.tokenizer, schema=train.schema, unknown="group")
    if not (_labels(test) >= 0).any():
        hint = "the classifier cannot be evaluated"
        raise UserError(f"{table_name(table)}: no text has a value of {target} that occurs in training; {hint}")
    return train, test


def naive_bayes(train: Corpus, test: Corpus, *, priors: str = "uniform") -> tuple[Classification, Tally]:
    """Classify by Bayes' rule over smoothed unigram models; also tally the nats of the texts given their true values.

    `priors` is "uniform" or "training" (the frequencies of the values in training).
    """
    choose("priors", priors, PRIORS)
    names, labels, size = _names(train), _labels(train), len(train.tokenizer)
    values = np.repeat(labels, train.lengths)
    flat = (values * size + target_ids(train))[values >= 0]
    counts = np.bincount(flat, minlength=len(names) * size).reshape(len(names), size) + SMOOTHING
    counts[:, train.tokenizer.specials.start] = 0  # the start token is never predicted
    log_probs = np.log(np.where(counts > 0, counts, 1.0)).T - np.log(counts.sum(1))
    likelihoods, test_ids, starts = np.zeros((len(test), len(names))), target_ids(test), target_offsets(test)
    for rows in np.array_split(np.arange(len(test)), 1 + len(test_ids) * len(names) // CELLS):
        targets = slice(starts[rows[0]], starts[rows[-1] + 1])
        likelihoods[rows] = np.add.reduceat(log_probs[test_ids[targets]], starts[rows] - targets.start)
    truth = _labels(test)
    labelled = np.flatnonzero(truth >= 0)
    tally = Tally(-float(likelihoods[labelled, truth[labelled]].sum()), int(test.lengths[labelled].sum()))
    true_values = [names[label] if label >= 0 else None for label in truth]
    frequencies = dict(zip(names, np.bincount(labels[labels >= 0]).tolist(), strict=True))
    result = apply_bayes_rule(names, likelihoods, test.lengths, true_values, truncated=test.truncated)
    return result.with_priors(frequencies) if priors == "training" else result, tally


class LinearClassifier:
    """Logistic regression on hashed n-grams of 1 to `order` tokens, trained by Adagrad on texts with frequent values.

    The features of a text are its n-gram counts divided by the square root of the number of its n-grams.
    """

    def __init__(self, train: Corpus, *, order: int = 2, seed: int = 0, progress: bool = False) -> None:
        limits.check(order=order, seed=seed)
        self.order, self.names, labels = order, _names(train), torch.from_numpy(_labels(train))
        self.buckets = min(1 << 20, 1 << (CELLS // len(self.names)).bit_length() - 1)
        self.weights, squares = torch.zeros(2, self.buckets, len(self.names))
        bags, random = _Bags(train, order, self.buckets), np.random.default_rng(seed)
        rows = np.flatnonzero(labels.numpy() >= 0)
        steps = [batch for _ in range(EPOCHS) for batch in _batches(random.permutation(rows))]
        for step, batch in enumerate(progress_bar(steps, desc="linear", unit="steps", show=progress)):
            distinct, positions, starts = bags.take(batch)
            bucket_weights = F.embedding(distinct, self.weights).requires_grad_()
            (gradient,) = torch.autograd.grad(
                F.cross_entropy(_logits(bucket_weights, positions, starts), labels[batch]), bucket_weights
            )
            squares[distinct] += gradient**2
            self.weights[distinct] -= RATE * (1 - step / len(steps)) * gradient / (squares[distinct].sqrt() + 1e-8)

    def __call__(self, test: Corpus) -> Classification:
        bags, parts = _Bags(test, self.order, self.buckets), []
        for batch in _batches(np.arange(len(test))):
            distinct, positions, starts = bags.take(batch)
            parts.append(F.log_softmax(_logits(F.embedding(distinct, self.weights), positions, starts).double(), 1))
        return _classification(self.names, torch.cat(parts).numpy(), test)


def _batches(rows: Ids) -> list[Ids]:
    return np.array_split(rows, range(BATCH, len(rows), BATCH))


def _logits(weights: Tensor, positions: Tensor, starts: Tensor) -> Tensor:
    counts = torch.diff(starts, append=torch.tensor([len(positions)]))
    return F.embedding_bag(positions, weights, starts, mode="sum") / counts.sqrt()[:, None]


class _Bags:
    """The hash `buckets` (F,) of the n-grams of all texts, and the `offsets` (B + 1,) at which each text begins."""

    def __init__(self, corpus: Corpus, order: int, buckets: int) -> None:
        tokens, offsets = corpus.tokens.astype(np.uint64), np.asarray(corpus.offsets)
        text = np.repeat(np.arange(len(corpus)), np.diff(offsets))
        place = np.arange(len(tokens)) - offsets[text]
        hashed = np.zeros(len(tokens), dtype=np.uint64)  # hash of the n-gram that ends at each token
        buckets_of, texts = [], []
        for length in range(1, order + 1):
            hashed[1:] = hashed[:-1]
            hashed = extend_hashes(hashed, tokens + np.uint64(length), shift=32)
            inside = place >= length - 1
            buckets_of.append((hashed[inside] % np.uint64(buckets)).astype(np.int64))
            texts.append(text[inside])
        text_of_ngram = np.concatenate(texts)
        self.buckets = np.concatenate(buckets_of)[np.argsort(text_of_ngram, kind="stable")]
        self.offsets = np.append(0, np.cumsum(np.bincount(text_of_ngram, minlength=len(corpus))))

    def take(self, texts: Ids) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distinct buckets (U,) of `texts` (B,), each n-gram's position among them (F,), and starts (B,)."""
        counts = self.offsets[texts + 1] - self.offsets[texts]
        starts = np.cumsum(counts) - counts
        index = np.repeat(self.offsets[texts] - starts, counts) + np.arange(counts.sum())
        distinct, positions = np.unique(self.buckets[index], return_inverse=True)
        return torch.from_numpy(distinct), torch.from_numpy(positions), torch.from_numpy(starts)


class FastTextClassifier:
    """The fastText classifier with n-grams up to `order`, 10 dimensions and 5 passes (Joulin et al. 2017, sec. 3.1)."""

    def __init__(self, train: Corpus, *, order: int = 2, seed: int = 0, progress: bool = False) -> None:
        limits.check(order=order, seed=seed)
        try:
            library = importlib.import_module("fasttext")
        except ImportError:
            hint = "pip install 'factorcell[fasttext]'"
            raise UserError(f"fastText is not installed; install the extra: {hint}") from None
        self.names, labels = _names(train), _labels(train)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.txt"
            texts = zip(labels, _lines(train), strict=True)
            lines = (f"__label__{label} {text}\n" for label, text in texts if label >= 0)
            path.write_text("".join(lines), encoding="utf-8")
            self.model = library.train_supervised(
                input=str(path), dim=10, lr=0.5, epoch=5, wordNgrams=order, thread=1, seed=seed % (1 << 31), verbose=0
            )

    def __call__(self, test: Corpus) -> Classification:
        log_posterior = np.full((len(test), len(self.names)), -np.inf)
        for row, (labels, p) in enumerate(zip(*self.model.predict(_lines(test), k=-1), strict=True)):
            log_posterior[row, [int(label.removeprefix("__label__")) for label in labels]] = np.log(p)
        return _classification(self.names, log_posterior, test)


def _lines(corpus: Corpus) -> list[str]:
    return [" ".join(map(str, text.tolist())) for text in np.split(corpus.tokens, corpus.offsets[1:-1])]


def _names(corpus: Corpus) -> tuple[str, ...]:
    return corpus.schema.categories[0].values[1:]


def _labels(corpus: Corpus) -> Ids:
    """Return the index of the value of each text (B,), -1 for a rare or missing value."""
    return np.maximum(corpus.categories[:, 0].astype(np.int64) - 1, -1)


def _classification(names: tuple[str, ...], log_posterior: Floats, test: Corpus) -> Classification:
    """Return a classification from the log posteriors of a discriminative model; they are also the detection scores."""
    distractor = np.zeros(len(test), dtype=bool)
    return Classification(names, log_posterior, log_posterior, _labels(test), distractor, truncated=test.truncated)

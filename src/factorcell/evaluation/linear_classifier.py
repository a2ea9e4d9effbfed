"""A linear classifier of texts and contexts: scikit-learn's logistic regression on TF-IDF and on context columns.

    log q(v | text, o) = b_v + w_v x(text) + sum_j w_jv x_j(o_j) - log Z

A run has two for each category: the linear baseline reads texts and the other columns, the conditional prior only the
other columns. Shapes: B texts, K values of the target, F features.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack
from scipy.special import log_softmax
from torch import Tensor

from factorcell.config import Config
from factorcell.data.columns.columns import check_columns, with_context
from factorcell.data.columns.declarations import parse_column
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Corpus
from factorcell.data.counts import count_users
from factorcell.data.preparation import prepare
from factorcell.data.tables.tables import table_name
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.evaluation.bayes_rule import LINEAR, Classification, to_log_prior
from factorcell.io import files
from factorcell.io.arrays import indices_where, mapped, permutation
from factorcell.io.findings import Finding, report
from factorcell.runs.run import Run

WORD_ORDER, CHARACTER_ORDER = 2, 5  # maximum lengths of n-grams
MIN_TEXTS = 2  # an n-gram must be in this many texts, or if texts have users, in texts of this many users
MAX_WEIGHTS = 1 << 22  # maximum number of weights of n-grams; the least frequent n-grams are left out
MAX_VALUES = 256  # targets with more values have no classifier
MAX_RANGES, TEXTS_PER_RANGE = 256, 20  # maximum number of ranges of a number; minimum mean number of texts in a range
INVERSE_PENALTY = 3.0  # C of scikit-learn
MAX_ITERATIONS, TOLERANCE = 1000, 1e-2  # about 10 passes over the texts are enough
READING_COST = 10  # cost of reading a feature, relative to that of fitting its weight for one value
SMOOTHING = 0.1  # weight of a text without features that each value gets, so that its probability is not zero
BLOCK_TOKENS = 1 << 19  # tokens of the texts that are classified at once

BASELINES_FILE, PRIORS_FILE = "linear.safetensors", "priors.safetensors"  # of a run folder

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LinearClassifier:
    """A logistic regression of a category on the n-grams of texts, on the other context variables, or on both.

    x(text) has the TF-IDF values of the n-grams of a text: 1 + log(count), times the inverse document frequency,
    divided by their Euclidean norm. N-grams have up to 2 words or pieces of words, or up to 5 characters. x_j(o_j) is a
    one-hot vector for a category, a one-hot vector of ranges (quantiles) for a number, the standardized numbers of a
    vector, or the counts of the words of a text, divided by the square root of their number.
    """

    target: Variable  # the category that it predicts; the values (K,) do not include the unknown value
    others: tuple[Variable, ...]  # the context variables that it reads
    order: int  # the maximum length of n-grams; 0 if it does not read texts
    ngrams: NDArray[np.uint64]  # the keys of the n-grams that it reads, in ascending order
    idf: NDArray[np.float32]  # their inverse document frequencies
    edges: Mapping[str, NDArray[np.float32]]  # the lower ends of the ranges of each number, by its name
    # the weights of n-grams, then those of each variable (F, K), rounded to half precision
    weights: NDArray[np.float16]
    bias: NDArray[np.float32]  # the bias of each value (K,)
    read_share: float = 1.0  # the share of the texts with a value that it was fitted to

    @property
    def names(self) -> tuple[str, ...]:
        """The values of the target (K,)."""
        return self.target.values[1:]

    @classmethod
    def fit(
        cls, train: Corpus, target: str, *, reads_text: bool = True, min_users: int = 0, max_cost: float = np.inf
    ) -> "LinearClassifier":
        """Train a classifier on the texts of a corpus that have a value of the target.

        Args:
            train: The training texts.
            target: The name of the target.
            reads_text: Whether to read the n-grams of the texts.
            min_users: The minimum number of users who wrote an n-gram that is read, if the texts have users.
            max_cost: The maximum number of features of all texts times the number of values plus `READING_COST`; a
                random part of more texts is read.
        """
        variable, order = train.schema.variable(target), 0
        if reads_text:
            order = CHARACTER_ORDER if train.tokenizer.is_character_level else WORD_ORDER
        others = other_variables(train.schema, target)
        size, features_per_text = len(variable.values) - 1, order * train.target_count / len(train) + len(others)
        cost_per_text = features_per_text * (size + READING_COST)
        labelled_rows = indices_where(mapped(lambda ids: ids > 0, _arrays(train)[target]))
        random_order = permutation(np.random.default_rng(0), len(labelled_rows))
        rows = labelled_rows[random_order[: int(min(len(labelled_rows), max_cost / cost_per_text))]]
        texts = train.select(np.sort(rows))
        ngrams, idf = choose_ngrams(texts, order, min_users, MAX_WEIGHTS // size)
        arrays = _arrays(texts)
        edges = {other.name: _range_edges(arrays[other.name]) for other in ContextSchema(others).numbers}
        nothing = np.zeros((0, size), np.float16), np.zeros(size, np.float32)
        share = len(rows) / max(1, len(labelled_rows))
        return cls(variable, others, order, ngrams, idf, edges, *nothing, share)._fit_weights(texts)

    def _fit_weights(self, texts: Corpus) -> "LinearClassifier":
        """Return the classifier with the weights that fit these texts.

        The weights of each category and number are shifted so that their mean over the texts is zero, which changes no
        probability. A missing value, or a value that no text has, has weight zero: it is read as the mean.
        """
        from sklearn.linear_model import LogisticRegression

        labels, size, blocks = target_labels(texts, self.target.name), len(self.names), self._features(texts)
        features = hstack(blocks, format="csr")
        examples = vstack([features, csr_array((size, features.shape[1]), dtype=np.float32)], format="csr")
        indices = examples.indices.astype(np.int32), examples.indptr.astype(np.int32)  # scikit-learn reads 32 bits
        regression = LogisticRegression(
            C=INVERSE_PENALTY, solver="saga", max_iter=MAX_ITERATIONS, tol=TOLERANCE, random_state=0
        )
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # about targets with many values
            regression.fit(
                csr_array((examples.data, *indices), (examples.shape[0], max(1, features.shape[1]))),
                np.append(labels, np.arange(size)),
                np.append(np.ones(len(labels)), np.full(size, SMOOTHING)),
            )
        weights = regression.coef_.T[: features.shape[1]].astype(np.float64)
        bias = regression.intercept_.astype(np.float64)
        if size == 2:  # scikit-learn has the weights of the second value relative to the first
            weights, bias = np.append(-weights, weights, axis=1) / 2, np.append(-bias, bias) / 2
        counts = np.asarray(features.sum(0))
        parts = zip(self.others, _split(weights, blocks)[1:], _split(counts, blocks)[1:], strict=True)
        for variable, weights_of_variable, text_counts in parts:
            if variable.kind not in ("text", "vector"):
                mean = text_counts @ weights_of_variable / max(1, len(labels))
                weights_of_variable[:] = np.where(text_counts[:, None] > 0, weights_of_variable - mean, 0.0)
                bias += mean
        return replace(self, weights=weights.astype(np.float16), bias=bias.astype(np.float32))

    def _features(self, corpus: Corpus) -> list[Any]:
        """Return the sparse features of the n-grams of texts, then those of each variable, a matrix for each."""
        arrays, blocks = _arrays(corpus), [self._tfidf(corpus)]
        for variable in self.others:
            values, width = arrays[variable.name], _width(variable, self.edges)
            if variable.kind == "vector":
                standardized = (values - np.array(variable.means)) / np.array(variable.deviations)
                blocks.append(csr_array(np.nan_to_num(standardized).astype(np.float32)))
            elif variable.kind == "text":
                counts = np.diff(values.offsets)
                shares = np.repeat(np.maximum(counts, 1) ** -0.5, counts).astype(np.float32)
                blocks.append(csr_array((shares, values.values, values.offsets), (len(corpus), width)))
            elif variable.kind == "category":
                blocks.append(_one_hot(values.astype(np.int64) + 1, width))
            else:
                ranges = np.searchsorted(self.edges[variable.name], values, side="right") + 1
                blocks.append(_one_hot(np.where(np.isnan(values), 0, ranges), width))
        return blocks

    def _tfidf(self, corpus: Corpus) -> Any:
        features = count_ngrams(corpus, self.order, self.ngrams)
        features.data = (1 + np.log(features.data)) * self.idf[features.indices]
        norms = np.sqrt(np.asarray(features.power(2).sum(1)))
        features.data /= np.repeat(norms, np.diff(features.indptr))
        return features

    def log_probs(self, corpus: Corpus) -> Floats:
        """Return log q(v | text, o) of each value (B, K)."""
        weights, bias = self.weights.astype(np.float32), self.bias.astype(np.float64)
        log_probs = []
        for rows in np.array_split(np.arange(len(corpus)), 1 + self.order * len(corpus.tokens) // BLOCK_TOKENS):
            blocks = self._features(corpus.select(rows))
            parts = zip(blocks, _split(weights, blocks), strict=True)
            logits = sum((np.asarray(block @ part, dtype=np.float64) for block, part in parts), bias)
            log_probs.append(log_softmax(logits, axis=1))
        return np.concatenate(log_probs)

    def report_dependence(self, corpus: Corpus) -> None:
        """Report if the other columns predict the target of most texts that do not have its most frequent value."""
        labels = target_labels(corpus, self.target.name)
        rows = np.flatnonzero(labels >= 0)
        if not len(rows):
            return
        labels, blocks = labels[rows], self._features(corpus.select(rows))[1:]
        weights = _split(self.weights[-sum(block.shape[1] for block in blocks) :].astype(np.float64), blocks)
        logits = [np.asarray(block @ part) for block, part in zip(blocks, weights, strict=True)]
        accuracies = [float(((values + self.bias).argmax(1) == labels).mean()) for values in [*logits, sum(logits)]]
        majority = np.bincount(labels).max() / len(labels)
        if accuracies[-1] > (1 + majority) / 2:
            accuracy, name = max(zip(accuracies[:-1], (variable.name for variable in self.others), strict=True))
            problem = f"the other columns alone predict {self.target.name} in {accuracies[-1]:.1%} of the rows"
            shares = f"{name} alone in {accuracy:.1%}, the most frequent value in {majority:.1%}"
            remedy = "a high accuracy does not show that the texts are informative"
            report(Finding("dependent columns", f"{problem} ({shares}); {remedy}"))

    def candidate_log_probs(self, corpus: Corpus, names: Sequence[str]) -> Floats:
        """Return the log probabilities (B, candidates) of some values, normalized over these values."""
        return np.asarray(log_softmax(self.log_probs(corpus)[:, [self.names.index(name) for name in names]], axis=1))


def save(path: Path, classifiers: Mapping[str, LinearClassifier]) -> None:
    """Write the classifiers of a run by target; without classifiers, write no file."""
    tensors: dict[str, Tensor] = {}
    for index, classifier in enumerate(classifiers.values()):
        arrays: dict[str, NDArray[Any]] = {"ngrams": classifier.ngrams.view(np.int64)}
        arrays |= {name: getattr(classifier, name) for name in ("idf", "weights", "bias")}
        arrays |= {f"edges.{number}": edges for number, edges in enumerate(classifier.edges.values())}
        tensors |= {f"{index}:{name}": torch.from_numpy(array) for name, array in arrays.items()}
    if tensors:
        orders = [[target, classifier.order, classifier.read_share] for target, classifier in classifiers.items()]
        files.save_tensors(path, tensors, {"orders": orders})


def load(path: Path, schema: ContextSchema) -> dict[str, LinearClassifier]:
    """Read the classifiers that `save` wrote, by target; none without a file."""
    if not path.exists():
        return {}
    tensors, facts = files.load_tensors(path)
    arrays: dict[str, NDArray[Any]] = {name: tensor.numpy() for name, tensor in tensors.items()}
    classifiers: dict[str, LinearClassifier] = {}
    for index, (target, order, *share) in enumerate(facts["orders"]):
        ngrams, idf, weights, bias = (arrays[f"{index}:{name}"] for name in ("ngrams", "idf", "weights", "bias"))
        others = other_variables(schema, target)
        edges = {
            other.name: arrays.get(f"{index}:edges.{number}", np.zeros(0, np.float32))
            for number, other in enumerate(ContextSchema(others).numbers)
        }
        size = sum((len(idf), *(_width(other, edges) for other in others)))
        variable = next((variable for variable in schema.categories if variable.name == target), None)
        if variable is None or weights.shape != (size, len(variable.values) - 1):
            raise UserError(f"{path}: does not belong to this schema; train the run again")
        classifiers[target] = LinearClassifier(
            variable, others, order, ngrams.view(np.uint64), idf, edges, weights, bias, *share
        )
    return classifiers


def save_classifiers(run: Run, train: Corpus, max_cost: float = np.inf) -> None:
    """Fit the linear baselines and the priors of a run and save them; `max_cost` is that of `LinearClassifier.fit`."""
    targets, min_users = possible_targets(run), run.config.training.min_users
    fit = partial(LinearClassifier.fit, train, max_cost=max_cost)
    baselines = {target: fit(target, min_users=min_users) for target in targets}
    has_others = len(run.schema.embedded.variables) > 1
    priors = {target: fit(target, reads_text=False) for target in targets} if has_others else {}
    save(run.folder / BASELINES_FILE, baselines)
    save(run.folder / PRIORS_FILE, priors)


def missing_baseline(run: Run, target: str) -> str:
    """Return why a run has no linear baseline of a target, and how to get one."""
    size = len(run.schema.variable(target).values) - 1
    remedy = f"`factorcell baseline linear` trains one; training does for 2 to {MAX_VALUES} values"
    remedy = "train the run again, which fits it" if target in possible_targets(run) else remedy
    return f"{run.folder}: no linear baseline of {target} ({size:,} values); {remedy}"


def with_target(config: Config, target: str, context: Sequence[str] = ()) -> Config:
    """Return the options of `config` for texts, with column `target`, a category, before the columns of `context`."""
    if target in [parse_column(column).name for column in context]:
        raise UserError(f"context column {target!r}: it is the target; choose other columns")
    data = with_context(config.data, f"{target}:category", *context)
    return Config(data=data, tokenizer=config.tokenizer, backbone=config.backbone)  # which may have the tokenizer


def read_train_and_test(
    train_source: Any,
    test_source: Any,
    target: str,
    config: Config,
    *,
    context: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
) -> tuple[Corpus, Corpus]:
    """Read training and test texts with the column `target`, and with the columns `context` (NAME or NAME:KIND)."""
    config = with_target(config, target, context)
    check_columns(test_source, config.data)
    train = prepare(train_source, config, tokenizer=tokenizer, optional=(target,))
    if len((variable := train.schema.variable(target)).values) < 3:  # the first value is the unknown value
        count = variable.min_count
        raise UserError(f"{target}: expected at least two values with {count} training texts each, got fewer")
    test = prepare(
        test_source, config, tokenizer=train.tokenizer, schema=train.schema, unknown="group", optional=(target,)
    )
    if not (target_labels(test, target) >= 0).any():
        hint = "the classifier cannot be evaluated"
        raise UserError(f"{table_name(test_source)}: no text has a value of {target} that occurs in training; {hint}")
    return train, test


def classify_with_linear_baseline(train: Corpus, test: Corpus) -> Classification:
    """Train a `LinearClassifier` of the first category of a corpus, and classify the texts of another corpus."""
    baseline = LinearClassifier.fit(train, train.schema.categories[0].name)
    return discriminative_classification(test, baseline.log_probs(test))


def discriminative_classification(test: Corpus, log_posterior: Floats) -> Classification:
    """Return a classification of texts by the first category of their schema, from its log posterior (B, K)."""
    target = test.schema.categories[0]
    truth = np.maximum(target_labels(test, target.name), -1)
    return Classification(target.values[1:], log_posterior, truth, LINEAR, truncated=test.truncated)


def training_log_prior(variable: Variable, names: Sequence[str]) -> Floats:
    """Return the log frequencies (K,) of the values `names` in training, among these values; uniform without counts."""
    counts = np.array([variable.counts_by_value[name] for name in names])
    return to_log_prior(counts if counts.any() else np.ones(len(names)))


def possible_targets(run: Run) -> list[str]:
    """Return the categories of an adapted run with 2 to `MAX_VALUES` values, without users: they get classifiers."""
    if not run.model.is_adapted:
        return []
    categories = [variable for variable in run.schema.categories if variable.source_column != run.config.data.user]
    return [variable.name for variable in categories if 2 <= len(variable.values) - 1 <= MAX_VALUES]


def other_variables(schema: ContextSchema, target: str) -> tuple[Variable, ...]:
    """Return the variables of a schema that a classifier of a target can read: all others except prompts."""
    return tuple(variable for variable in schema.embedded.variables if variable.name != target)


def _width(variable: Variable, edges: Mapping[str, NDArray[np.float32]]) -> int:
    if variable.kind == "vector":
        return len(variable.means)
    if variable.kind in ("text", "category"):
        return len(variable.values) + (variable.kind == "category")  # a missing category has a feature, too
    return len(edges[variable.name]) + 2  # a missing number, and the ranges


def target_labels(corpus: Corpus, target: str) -> Ids:
    """Return the index of each text's value of a category (B,), without the unknown value; negative without one."""
    labels: Ids = _arrays(corpus)[target].astype(np.int64) - 1
    return labels


def _arrays(corpus: Corpus) -> dict[str, Any]:
    schema = corpus.schema
    columns = [
        *zip(schema.categories, corpus.categories.T, strict=True),
        *zip(schema.numbers, corpus.numbers.T, strict=True),
        *zip(schema.vectors, corpus.vectors, strict=True),
        *zip(schema.texts, corpus.words, strict=True),
    ]
    return {variable.name: values for variable, values in columns}


def _split(rows: NDArray[Any], blocks: Sequence[Any]) -> list[NDArray[Any]]:
    """Return the rows, such as weights, of each block of features."""
    return np.split(rows, np.cumsum([block.shape[1] for block in blocks])[:-1])


def _one_hot(ids: Ids, size: int) -> Any:
    return csr_array((np.ones(len(ids), np.float32), ids, np.arange(len(ids) + 1)), (len(ids), size))


def _range_edges(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the lower ends of the ranges of numbers (B,): all values if they are few, otherwise quantiles."""
    present = numbers[np.isfinite(numbers)]
    values, count = np.unique(present), min(MAX_RANGES, len(present) // TEXTS_PER_RANGE)
    if len(values) <= count:
        return values
    edges: NDArray[np.float32] = np.unique(np.quantile(present, np.arange(1, count) / max(1, count), method="lower"))
    return edges


def text_ngrams(corpus: Corpus, order: int) -> tuple[Ids, NDArray[np.uint64]]:
    """Return the texts and keys of all n-grams; a key is a number to the base V + 1, modulo 2^64."""
    specials = corpus.tokenizer.specials
    tokens = np.asarray(corpus.tokens)
    is_read = (tokens != specials.start) & (tokens != specials.end)
    texts = np.repeat(np.arange(len(corpus)), np.diff(corpus.offsets))[is_read]
    digits = tokens[is_read].astype(np.uint64) + np.uint64(1)
    keys, parts = np.zeros_like(digits), []
    for length in range(1, order + 1):
        # whether the n-gram begins in the text in which it ends
        is_inside = texts[length - 1 :] == texts[: max(0, len(texts) - length + 1)]
        keys = keys[: len(keys) - (length > 1)] * np.uint64(len(corpus.tokenizer) + 1) + digits[length - 1 :]
        parts.append((texts[length - 1 :][is_inside], keys[is_inside]))
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    return np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts])


def count_ngrams(corpus: Corpus, order: int, ngrams: NDArray[np.uint64]) -> Any:
    """Return the counts of the n-grams with these keys in each text as a sparse matrix (B, n-grams)."""
    texts, keys = text_ngrams(corpus, order)
    columns = np.searchsorted(ngrams, keys).clip(max=max(0, len(ngrams) - 1))
    is_read = ngrams[columns] == keys if len(ngrams) else np.zeros(len(keys), dtype=bool)
    positions = texts[is_read].astype(np.int32), columns[is_read].astype(np.int32)
    counts = csr_array((np.ones(len(positions[0]), np.float32), positions), (len(corpus), len(ngrams)))
    counts.sum_duplicates()
    return counts


def choose_ngrams(
    corpus: Corpus, order: int, min_users: int, max_count: int
) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
    """Return the keys of the n-grams that enough texts or users have, at most `max_count`, and their IDF."""
    texts, keys = text_ngrams(corpus, order)
    ngrams, indices = np.unique(keys, return_inverse=True)
    counts = csr_array((np.ones(len(texts), np.float32), (texts, indices)), (len(corpus), len(ngrams)))
    counts.sum_duplicates()
    text_counts = np.bincount(counts.indices, minlength=len(ngrams))
    is_read = text_counts >= MIN_TEXTS
    if len(corpus.users):
        is_read = count_users(indices, corpus.users[texts], len(ngrams)) >= max(MIN_TEXTS, min_users)
    chosen = np.flatnonzero(is_read)
    chosen = np.sort(chosen[np.argsort(-text_counts[chosen], kind="stable")[:max_count]])
    idf = np.log((1 + len(corpus)) / (1 + text_counts[chosen])) + 1
    return ngrams[chosen], idf.astype(np.float32)

"""Linear mixtures: of a run with counts of its training texts, and of several runs, n-gram models and other mixtures.

Expectation maximization (EM) fits the weights w_k of p(token) = sum_k w_k p_k(token):

    r_nk = w_k p_k(n) / sum_j w_j p_j(n)        w_k <- (sum_n r_nk + prior_k) / (N + sum_j prior_j)

p_k(n) is the probability of target n in model k, r_nk the share of model k in the mixture's probability of target n,
and prior_k the number of targets that a prior adds for model k.
No iteration decreases the posterior probability of the weights, whose logarithm is concave: it has a single maximum.
The weights of a run and its counts depend on the length of the longest counted history (`ngram.mixture`), those of
several models on the value of a column.

Shapes: N targets, M models, G groups of targets.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Corpus
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.classification import category_variable
from factorcell.io import files
from factorcell.io.arrays import permutation
from factorcell.io.input_files import CONFIG
from factorcell.ngram.mixture import (
    CACHE,
    FILE,
    FORMAT,
    NGRAM,
    VALUE,
    CountModels,
    Mixture,
    ValueOrder,
    count_by_value,
    read_weights,
    values_of_texts,
)
from factorcell.ngram.ngram import FILE as NGRAM_FILE
from factorcell.ngram.ngram import NGram, count_ngrams, default_order
from factorcell.nn.devices import AUTO, FLOAT32
from factorcell.nn.scoring import mixed_nats
from factorcell.options.limits import check_unknown
from factorcell.runs.run import Run
from factorcell.training.rules import MAX_COMPARED_TARGETS

PRIOR_TARGETS = 100.0  # sum of prior_k: for the weights of a part of the targets, all targets count as much as 100
MAX_ITERATIONS = 10_000  # of EM
MIN_STEP = 1e-7  # nats per target; EM ends after an iteration that improves the log posterior by less

MAX_COUNTED_TARGETS = 20_000_000  # n-grams of larger tables are counted in a random part of their texts
MAX_DEV_TARGETS = 300_000  # development targets on which the weights are fitted
COMPARED_ORDER, COMPARED_CHARACTER_ORDER = 3, 6  # highest orders that are counted to choose a column
SHARES = tuple(step / 20 for step in range(21))  # candidates for s_n
MIN_IMPROVEMENT = 0.002  # nats per target that a further component must gain

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


def fit_weights_by_group(nats: Floats, groups: Ids, group_count: int) -> Floats:
    """Return the weights (G, M) of each group of targets (N,), kept near those of all targets by a prior."""
    prior = PRIOR_TARGETS * fit_weights(nats)
    return np.stack([fit_weights(nats[groups == group], prior) for group in range(group_count)])


def fit_weights(nats: Floats, prior: Floats | None = None) -> Floats:
    """Return the weights (M,) that maximize the likelihood of targets with these nats (N, M); `prior` is (M,).

    Without targets and prior, the weights are equal.
    """
    target_count, model_count = nats.shape
    prior = np.zeros(model_count) if prior is None else prior
    total = target_count + prior.sum()
    weights = np.full(model_count, 1 / model_count)
    # The likelihoods of each target are scaled to a maximum of 1; the weights do not depend on the scale.
    likelihoods = np.exp(nats.min(axis=1, keepdims=True) - nats)
    has_prior = prior > 0  # excludes 0 log 0 from the sum below
    previous_objective = -np.inf
    for _ in range(MAX_ITERATIONS if total else 0):
        joint = likelihoods * weights
        mixed = joint.sum(axis=1, keepdims=True)
        log_prior = (prior[has_prior] * np.log(weights[has_prior])).sum()
        objective = (np.log(mixed).sum() + log_prior) / total
        if objective - previous_objective < MIN_STEP:
            break
        shares = joint / mixed  # r_nk
        previous_objective, weights = objective, (shares.sum(axis=0) + prior) / total
    normalized: Floats = weights / weights.sum()
    return normalized


def fit_mixture(run: Run, corpus: Corpus, dev: Corpus) -> tuple[Mixture, files.Row]:
    """Fit the mixture of a run with counts of its training texts `corpus`; also return the row for training.json.

    Cross-validation over two halves of the development texts chooses the components. The reported perplexity of the
    mixture comes from it too, so no text is predicted with weights of components that were fitted on it; the column and
    the shares of its orders are chosen on all these texts. Nothing is saved.
    """
    corpus, sample = limit_targets(corpus, MAX_COUNTED_TARGETS), limit_targets(dev, MAX_DEV_TARGETS)
    ngram = NGram(run.folder, run.config, corpus.tokenizer, count_ngrams(corpus, default_order(corpus.tokenizer)))
    variable, orders = _best_value_counts(run, ngram, corpus, sample)
    counts = CountModels(ngram, variable, orders, [NGRAM, *([VALUE] if variable else []), CACHE])
    with run.scoring():
        nats, groups = Mixture(run.model, run.schema, counts).target_nats(sample, run.batches(sample))
    halves = np.repeat(np.arange(len(sample)) % 2, sample.lengths)
    columns, mixed = _choose_components(nats, groups, counts.length_count, halves)
    weights = fit_weights_by_group(nats[:, columns], groups, counts.length_count)
    names = [counts.names[column - 1] for column in columns[1:]]
    if VALUE not in names:
        variable, orders = None, []
    mixture = Mixture(run.model, run.schema, CountModels(ngram, variable, orders, names), weights)
    sums = {
        name: text_figures.figures_from_nats(part, sample)["perplexity"]
        for name, part in (("neural", nats[:, 0]), ("ngram", nats[:, 1]), ("mixture", mixed))
    }
    with np.errstate(over="ignore"):  # a diverged model has infinite perplexity
        perplexities = {name: float(np.exp(part.ratio)) for name, part in sums.items()}
    gain = perplexity.gain(sums["mixture"], sums["neural"])
    components = [f"counts by {variable.name}" if variable and name == VALUE else name for name in names]
    row = {"components": ["neural", *components], "texts": len(sample), "perplexity": perplexities}
    return mixture, {**row, **gain.to_row("gain")}


def limit_targets(corpus: Corpus, count: int) -> Corpus:
    """Return a random part of the texts with about `count` targets, or all texts if they have fewer."""
    if corpus.target_count <= count:
        return corpus
    texts = max(1, len(corpus) * count // corpus.target_count)
    return corpus.select(np.sort(permutation(np.random.default_rng(0), len(corpus))[:texts]))


def _best_value_counts(run: Run, ngram: NGram, corpus: Corpus, dev: Corpus) -> tuple[Variable | None, list[ValueOrder]]:
    """Count n-grams by the values of a category; return the column and the orders of its counts.

    It is the category with the fewest nats of development texts, for short n-grams that are counted in a part of the
    training texts. Counts of one user would reproduce what this user wrote, so the user column is left out, and a
    category with one frequent value has the counts of all texts.
    """
    variables, user = run.schema.categories, run.config.data.user
    names = {variable.name for variable in variables if variable.source_column != user and len(variable.values) > 2}
    columns = [column for column, variable in enumerate(variables) if variable.name in names]
    if not (columns and run.model.is_adapted):
        return None, []
    best_column = columns[0]
    if len(columns) > 1:
        part = limit_targets(corpus, MAX_COMPARED_TARGETS)
        length = COMPARED_CHARACTER_ORDER if corpus.tokenizer.is_character_level else COMPARED_ORDER
        best_column = min(columns, key=lambda column: _fit_shares(ngram, part, dev, column, length)[1])
    return variables[best_column], _fit_shares(ngram, corpus, dev, best_column, len(ngram.orders))[0]


def _fit_shares(ngram: NGram, corpus: Corpus, dev: Corpus, column: int, highest: int) -> tuple[list[ValueOrder], float]:
    """Count n-grams up to the order `highest` by the values of a column, and fit s_n; also return the nats of `dev`."""
    histories, grams = (
        [np.concatenate(ids) for ids in zip(*part, strict=True)] for part in zip(*ngram.blocks(dev), strict=True)
    )
    values = np.repeat(values_of_texts(dev, column), dev.lengths)
    orders, probabilities = count_by_value(ngram, corpus, column, highest), np.full(len(values), ngram.uniform)
    of_all_texts = ngram.target_probabilities(histories, grams)
    for order, by_all_texts, history_ids, gram_ids in zip(orders, of_all_texts, histories, grams, strict=False):
        first_terms, backoffs = order.first_terms(gram_ids, values), order.backoffs(history_ids, values)
        by_share = {
            share: first_terms + backoffs * (share * probabilities + (1 - share) * by_all_texts) for share in SHARES
        }
        order.share = max(by_share, key=lambda share: float(np.log(by_share[share]).sum()))
        probabilities = by_share[order.share]
    return orders, float(-np.log(probabilities).sum())


def _choose_components(nats: Floats, groups: Ids, group_count: int, halves: Ids) -> tuple[list[int], Floats]:
    """Choose the components by cross-validation over `halves` (N,), which has the half of each target, 0 or 1.

    Columns 0 and 1 of the nats (N, M) are the neural and the n-gram model. Return the columns of the components, and
    the nats (N,) in the mixtures whose weights were fitted on the other halves.
    """
    optional, results = range(2, nats.shape[1]), list[tuple[float, list[int], Floats]]()
    candidates: list[tuple[int, ...]] = [(), *((column,) for column in optional), tuple(optional)]
    for further in dict.fromkeys(candidates):
        columns, mixed = [0, 1, *further], np.empty(len(nats))
        parts = nats[:, columns]
        for half in (0, 1):
            is_used, is_held_out = halves != half, halves == half
            weights = fit_weights_by_group(parts[is_used], groups[is_used], group_count)
            mixed[is_held_out] = mixed_nats(parts[is_held_out], weights[groups[is_held_out]])
        mean = float(mixed.mean())
        if not results or mean < results[-1][0] - MIN_IMPROVEMENT:
            results.append((mean, columns, mixed))
    return results[-1][1:]


class MixedModels:
    """A linear mixture of models with the same vocabulary and context columns, which scores texts like a run.

    Args:
        folder: The folder of the mixture.
        models: The models. Those without context columns, such as n-gram models, may be mixed with the others.
        by: A categorical context variable whose values have separate weights, or None.
        weights: The weights (G, M), by default equal. With `by`, row 0 is for texts without a known value, and each
            further row for one of the values.

    Raises:
        UserError: If the models have different vocabularies or context columns, or read texts as different tokens.
    """

    def __init__(
        self, folder: Path, models: Sequence["Model"], by: str | None = None, weights: Floats | None = None
    ) -> None:
        self.folder, self.models, self.by = folder, list(models), by
        reader: Model = next((model for model in models if model.schema.variables), models[0])
        self._reader = reader
        self.config: Config = reader.config
        self.tokenizer: Tokenizer = reader.tokenizer
        self.schema: ContextSchema = reader.schema
        for model in models:
            where = f"{reader.folder} and {model.folder}: cannot mix models"
            if model.tokenizer.tokens != self.tokenizer.tokens:
                raise UserError(f"{where} with different vocabularies")
            if _reading_options(model.config) != _reading_options(self.config):
                raise UserError(f"{where} that read texts differently (tokenizer, text column or longest text)")
            if model.schema.variables and model.schema != self.schema:
                raise UserError(f"{where} with different context columns or values")
        self.values = () if by is None else category_variable(self.schema, by).values[1:]
        self.precision: str = next((model.precision for model in models if not isinstance(model, NGram)), FLOAT32)
        self.reads_context = bool(self.schema.variables)
        self.weights = np.full((1 + len(self.values), len(models)), 1 / len(models)) if weights is None else weights

    @classmethod
    def open(
        cls, folder: str | Path, *, device: str = "cpu", precision: str = AUTO, mixture: bool = True
    ) -> "MixedModels":
        """Open a mixture that `save` wrote.

        Args:
            folder: The folder of the mixture.
            device: The device to compute on: "cpu", "cuda" or "auto".
            precision: The precision of matrix products: "float32", "bfloat16" or "auto".
            mixture: Whether its runs use their n-gram mixtures.

        Raises:
            UserError: If a file is missing or not valid.
        """
        folder = Path(folder)
        saved = files.read_versioned(folder / FILE, FORMAT, folder)
        options: dict[str, Any] = {"device": device, "precision": precision, "mixture": mixture}
        try:
            mixed = cls(folder, [open_scorer(folder / path, **options) for path in saved["models"]], saved["by"])
            mixed.weights = read_weights(saved, *mixed.weights.shape)
        except (UserError, KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{folder / FILE}: not a valid mixture ({error})") from None
        return mixed

    def save(self) -> None:
        """Write the weights and the paths of the models, relative to the folder."""
        paths = [os.path.relpath(model.folder.resolve(), self.folder.resolve()) for model in self.models]
        content = {"models": paths, "counts": None, "by": self.by, "weights": self.weights.tolist()}
        files.write_versioned(self.folder / FILE, content, FORMAT)

    def prepare(self, source: Any, *, unknown: str = "group") -> Corpus:
        """Read texts from rows, a table or a file into the form that `nats` takes."""
        return self._reader.prepare(source, unknown=unknown)

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Return the nats of all targets of `corpus`, text after text."""
        nats, groups = self.model_nats(corpus)
        return mixed_nats(nats, self.weights[groups]).astype(np.float32)

    def model_nats(self, corpus: Corpus) -> tuple[Floats, Ids]:
        """Return the nats (N, M) of all targets, infinite where a weight is 0, and the row of `weights` of each."""
        groups = np.zeros(len(corpus), np.int64)
        if self.by is not None:
            column = self.schema.categories.index(self.schema.variable(self.by))
            groups = np.maximum(corpus.categories[:, column].astype(np.int64), 0)
        nats = np.full((corpus.target_count, len(self.models)), np.inf)
        for index, model in enumerate(self.models):
            is_read = self.weights[groups, index] > 0
            if is_read.any():
                part = corpus.select(np.flatnonzero(is_read))
                if model.schema != self.schema:
                    part = part.without_context(model.schema)
                nats[np.repeat(is_read, corpus.lengths), index] = model.nats(part).astype(np.float32)
        return nats, np.repeat(groups, corpus.lengths)

    def fit(self, corpus: Corpus) -> tuple[Floats, Ids]:
        """Set the weights that maximize the likelihood of `corpus`; return its `model_nats`."""
        self.weights = np.full_like(self.weights, 1 / len(self.models))
        nats, groups = self.model_nats(corpus)
        self.weights = fit_weights_by_group(nats, groups, len(self.weights))
        return nats, groups


Model = Run | NGram | MixedModels


def _reading_options(config: Config) -> tuple[Any, ...]:
    """Return the options that determine, with the vocabulary, how a table becomes tokens."""
    return config.tokenizer, config.data.text, config.data.max_tokens


def mix(
    folders: Sequence[str | Path],
    dev: Any,
    folder: str | Path,
    *,
    by: str | None = None,
    unknown: str = "group",
    device: str = "cpu",
    precision: str = AUTO,
) -> tuple[MixedModels, list[files.Row]]:
    """Fit a mixture to a table and save it.

    Args:
        folders: The folders of the models: runs, n-gram models or mixtures with the same vocabulary. All that have
            context columns have the same ones.
        dev: The table whose likelihood is maximized.
        folder: The folder of the mixture.
        by: A categorical context column; each of its values has separate weights.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        device: The device to compute on: "cpu", "cuda" or "auto".
        precision: The precision of matrix products: "float32", "bfloat16" or "auto".

    Returns:
        The mixture, and a row for all texts and for each value of the texts: the `perplexity` of the mixture, and the
        mean weight (`weights`) and the perplexity (`alone`) of each model.

    Raises:
        UserError: If the folder exists, a table is not valid, or the models cannot be mixed.
    """
    folder = Path(folder)
    files.check_new(folder)
    if not folders:
        raise UserError("models: a mixture needs at least one model")
    check_unknown(unknown)
    models = [open_scorer(path, device=device, precision=precision) for path in folders]
    mixture = MixedModels(folder, models, by)
    nats, groups = mixture.fit(mixture.prepare(dev, unknown=unknown))
    files.create_new_folder(folder)
    mixture.save()
    nats_of_mixture = mixed_nats(nats, mixture.weights[groups])
    members = [("all texts", np.ones(len(groups), dtype=bool))]
    if by is not None:
        members += [(name, groups == index) for index, name in enumerate(("rare or missing", *mixture.values))]
    rows = [
        {
            "value": name,
            "targets": int(is_included.sum()),
            "perplexity": float(np.exp(nats_of_mixture[is_included].mean())),
            "alone": np.exp(nats[is_included].mean(axis=0)).tolist(),
            "weights": mixture.weights[groups[is_included]].mean(axis=0).tolist(),
        }
        for name, is_included in members
        if is_included.any()
    ]
    return mixture, rows


def open_scorer(folder: str | Path, *, device: str = "cpu", precision: str = AUTO, mixture: bool = True) -> Model:
    """Open the run, n-gram model or mixture in a folder.

    Args:
        folder: The folder of the model.
        device: The device to compute on: "cpu", "cuda" or "auto".
        precision: The precision of matrix products: "float32", "bfloat16" or "auto".
        mixture: Whether runs use their n-gram mixtures.

    Returns:
        The model.

    Raises:
        UserError: If the folder does not contain a model, or a file is not valid.
    """
    folder = Path(folder)
    if (folder / NGRAM_FILE).is_file():
        return NGram.open(folder)
    if (folder / FILE).is_file() and not (folder / CONFIG).is_file():  # a run may have a mixture too
        return MixedModels.open(folder, device=device, precision=precision, mixture=mixture)
    return Run.open(folder, device=device, precision=precision, mixture=mixture)

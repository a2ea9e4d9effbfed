"""A linear mixture of models, p(token) = sum_k w_k p_k(token), whose weights maximize the likelihood of a table.

Expectation maximization fits the weights for all texts, and then for each value of a column.
A prior keeps the weights of a value with few targets near those of all texts:

    r_nk = w_k p_k(n) / sum_j w_j p_j(n)        w_k <- (sum_n r_nk + prior_k) / (N + sum_j prior_j)

The posterior never decreases, and it has one maximum because its logarithm is concave.

Shapes: N targets, M models.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import DataConfig, UserError
from factorcell.data.corpus import Corpus
from factorcell.data.readers import CategoryColumn
from factorcell.data.schema import ContextSchema, Variable
from factorcell.data.tables import open_table
from factorcell.evaluation.results import open_model
from factorcell.model.precision import FLOAT32
from factorcell.model.scoring import Scorer
from factorcell.training.per_value import INDEX_FILE as SEPARATE
from factorcell.training.per_value import SeparateRuns

INDEX_FILE = "mixture.json"
FORMAT = 1  # of the folder
PRIOR = 100.0  # targets that the weights of all texts count for in those of a value
ROUNDS, ENOUGH = 10_000, 1e-12  # of EM at most; the gain in nats per target below which it ends

Array = NDArray[np.float64]


def fit_weights(nats: Array, prior: Array | None = None) -> Array:
    """Return the weights (M,) that maximize the likelihood of targets with `nats` (N, M).

    `prior` (M,) counts as additional targets of each model. Without targets and prior all weights are equal.
    """
    count = nats.shape[1]
    prior = np.zeros(count) if prior is None else prior
    total = len(nats) + prior.sum()
    weights = np.full(count, 1 / count)
    likelihoods = np.exp(nats.min(axis=1, keepdims=True) - nats)  # up to a factor of each target
    known, before = prior > 0, -np.inf
    for _ in range(ROUNDS if total else 0):
        share = likelihoods * weights
        mixed = share.sum(axis=1, keepdims=True)
        after = (np.log(mixed).sum() + (prior[known] * np.log(weights[known])).sum()) / total
        if after - before < ENOUGH:
            break
        before, weights = after, ((share / mixed).sum(axis=0) + prior) / total
    normal: Array = weights / weights.sum()
    return normal


def mixed_nats(nats: Array, weights: Array) -> Array:
    """Return the nats (N,) of the mixture from those of its models (N, M), with `weights` (M,) or (N, M)."""
    least = nats.min(axis=1)
    mixed: Array = least - np.log((np.exp(least[:, None] - nats) * weights).sum(axis=1))
    return mixed


class Mixture:
    """Models with one vocabulary, and their weights: for all texts (row 0) and for each value of a `variable`.

    Its corpora hold the columns of all models next to each other, after that of the variable.
    """

    def __init__(self, folder: Path, models: Sequence[Scorer], variable: Variable | None, weights: Array) -> None:
        self.folder, self.models, self.variable, self.weights = folder, list(models), variable, weights
        self.tokenizer = models[0].tokenizer
        for model in models:
            if model.tokenizer.tokens != self.tokenizer.tokens:
                raise UserError(
                    f"{models[0].folder} and {model.folder} have different vocabularies: they cannot be mixed"
                )
        own = () if variable is None else (variable,)
        self.schema = ContextSchema((*own, *(v for model in models for v in model.schema.variables)))
        runs: list[Any] = [model for model in models if hasattr(model, "precision")]  # an n-gram model has none
        self.precision: str = runs[0].precision if runs else FLOAT32
        self.bfloat16_speedup: float = runs[0].bfloat16_speedup if runs else 1.0

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "cpu", precision: str = "float32") -> "Mixture":
        """Open a mixture that `save` wrote."""
        folder = Path(folder)
        kept = files.read_versioned(folder / INDEX_FILE, FORMAT, folder)
        try:
            paths = [folder / path for path in kept["models"]]
            own = {"name": kept["by"], "kind": "category", "values": kept["values"], "counts": kept["counts"]}
            variables = ContextSchema.from_dict({"variables": [own] if kept["by"] else []}).variables
            weights = np.array(kept["weights"], dtype=np.float64)
            fits = weights.shape == (len(variables[0].values) if variables else 1, len(paths))
            if not (paths and fits and (weights >= 0).all() and np.allclose(weights.sum(axis=1), 1)):  # also of NaN
                raise ValueError("expected weights of each model from 0 on that add up to 1, for each value")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / INDEX_FILE}: not a mixture ({error})") from None
        models: list[Scorer] = []
        for path in paths:
            models.append(open_scorer(path, device=device, precision=precision))
            precision = getattr(models[-1], "precision", precision)  # one for all of them
        return cls(folder, models, variables[0] if variables else None, weights)

    def save(self) -> None:
        """Write the weights and the paths of the models, relative to the folder."""
        files.new_folder(self.folder)
        files.create_manifest(self.folder, (INDEX_FILE,))
        own = self.variable or Variable("", "category")
        kept = {
            "models": [os.path.relpath(model.folder, self.folder) for model in self.models],
            "by": own.name or None,
            "values": own.values,
            "counts": own.counts,
            "weights": self.weights.tolist(),
        }
        files.write_versioned(self.folder / INDEX_FILE, kept, FORMAT)

    def prepare(self, source: Any, *, unknown: str = "error") -> Corpus:
        """Read texts for every model. `UserError` if the models see different tokens."""
        corpora = [model.prepare(source, unknown=unknown) for model in self.models]
        for model, corpus in zip(self.models, corpora, strict=True):
            if not np.array_equal(corpus.tokens, corpora[0].tokens):
                raise UserError(
                    f"{self.models[0].folder} and {model.folder} read the same texts differently (tokenizer, lower "
                    "case, punctuation or longest text): they cannot be mixed"
                )
        own = [] if self.variable is None else [_values(source, self.variable)[1][:, None]]
        return replace(
            corpora[0],
            schema=self.schema,
            categories=np.concatenate([*own, *(corpus.categories for corpus in corpora)], axis=1),
            numbers=np.concatenate([corpus.numbers for corpus in corpora], axis=1),
            vectors=tuple(vectors for corpus in corpora for vectors in corpus.vectors),
            bags=tuple(bags for corpus in corpora for bags in corpus.bags),
        )

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Return the nats of every target of `corpus`, text after text."""
        weights = np.repeat(self.weights[self._rows(corpus)], corpus.lengths, axis=0)
        return mixed_nats(self.model_nats(corpus), weights).astype(np.float32)

    def model_nats(self, corpus: Corpus) -> Array:
        """Return the nats (N, M) of every target by each model."""
        columns, begin = [], [int(self.variable is not None), 0, 0, 0]
        for model in self.models:
            kinds = (model.schema.categories, model.schema.numbers, model.schema.vectors, model.schema.texts)
            end = [first + len(own) for first, own in zip(begin, kinds, strict=True)]
            category, number, vector, text = (slice(*ends) for ends in zip(begin, end, strict=True))
            own = replace(
                corpus,
                schema=model.schema,
                categories=corpus.categories[:, category],
                numbers=corpus.numbers[:, number],
                vectors=corpus.vectors[vector],
                bags=corpus.bags[text],
            )
            begin = end
            columns.append(model.nats(own).astype(np.float64))
        return np.stack(columns, axis=1)

    def fit(self, corpus: Corpus) -> "Mixture":
        """Return the mixture with the weights that maximize the likelihood of `corpus`."""
        nats, rows = self.model_nats(corpus), np.repeat(self._rows(corpus), corpus.lengths)
        weights = np.empty_like(self.weights)
        weights[0] = fit_weights(nats)
        for row in range(1, len(weights)):
            weights[row] = fit_weights(nats[rows == row], PRIOR * weights[0])
        return Mixture(self.folder, self.models, self.variable, weights)

    def _rows(self, corpus: Corpus) -> NDArray[np.int64]:
        """Return the row of weights of each text; row 0 if its value is missing or new."""
        if self.variable is None:
            return np.zeros(len(corpus), dtype=np.int64)
        return np.maximum(corpus.categories[:, 0], 0).astype(np.int64)


def _values(source: Any, known: Variable) -> tuple[Variable, NDArray[np.int32]]:
    """Return a variable, filled from `source` if it has no values, and its values in each row of `source`."""
    table, done = open_table(source), 0
    reader = CategoryColumn(Variable(known.name, "category"), table.name)
    for chunk in table.chunks([known.name]):
        reader.add(chunk[known.name], done)
        done += len(chunk[known.name])
    variable = known if known.values else reader.variable(DataConfig(min_context_count=1))
    return variable, reader.array(variable)


def mix(
    models: Sequence[Scorer], dev: Any, folder: str | Path, *, by: str | None = None, unknown: str = "error"
) -> tuple[Mixture, list[files.Row]]:
    """Fit a mixture to the table `dev` and save it in `folder`.

    Args:
        models: Runs, n-gram models, separate runs or mixtures that have the same vocabulary.
        dev: The table whose likelihood is maximized.
        folder: The folder of the mixture.
        by: A column; each of its values gets its own weights.
        unknown: What to do with unknown context values: "error", "group" or "expected".

    Returns:
        The mixture; and a row for all texts and for each value, with the `perplexity` of the mixture, and for each
        model its weight (`weights`) and perplexity (`alone`).
    """
    folder = Path(folder)
    if not files.is_new(folder):
        raise files.folder_exists_error(folder)
    if not models:
        raise UserError("a mixture needs at least one model")
    variable = None if by is None else _values(dev, Variable(by, "category"))[0]
    sets = 1 if variable is None else len(variable.values)
    mixture = Mixture(folder, models, variable, np.full((sets, len(models)), 1 / len(models)))
    corpus = mixture.prepare(dev, unknown=unknown)
    mixture = mixture.fit(corpus)
    mixture.save()
    alone, mixed = mixture.model_nats(corpus), mixture.nats(corpus).astype(np.float64)
    which = np.repeat(mixture._rows(corpus), corpus.lengths)
    names = ["all texts", *(variable.values[1:] if variable else ())]
    rows = []
    for number, (name, weights) in enumerate(zip(names, mixture.weights, strict=True)):
        part = which == number if number else np.ones(len(which), dtype=bool)
        row = {"value": name, "targets": int(part.sum()), "perplexity": float(np.exp(mixed[part].mean()))}
        rows.append({**row, "alone": np.exp(alone[part].mean(axis=0)).tolist(), "weights": weights.tolist()})
    return mixture, rows


def open_scorer(folder: str | Path, *, device: str = "cpu", precision: str = "float32") -> Scorer:
    """Open the run, n-gram model, separate runs or mixture in `folder`."""
    folder = Path(folder)
    if (folder / INDEX_FILE).is_file():
        return Mixture.open(folder, device=device, precision=precision)
    if (folder / SEPARATE).is_file():
        return SeparateRuns.open(folder, device=device, precision=precision)
    return open_model(folder, device, precision)

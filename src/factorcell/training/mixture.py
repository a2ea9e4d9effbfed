"""A linear mixture of models, p(token) = sum_k w_k p_k(token), whose weights maximize the likelihood of a table.

Expectation maximization fits the weights for all texts, and then the weights for each value of a column
(`mixture_weights`). If a value has few targets, a prior keeps its weights near those for all texts.

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
from factorcell.choices import check_unknown
from factorcell.config import DataConfig, UserError
from factorcell.data.corpus import Corpus
from factorcell.data.readers import CategoryReader
from factorcell.data.schema import ContextSchema, Variable
from factorcell.data.tables import open_table
from factorcell.evaluation.results import open_model
from factorcell.model.devices import AUTO, FLOAT32
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer, mixed_nats
from factorcell.training.mixture_weights import PRIOR_TARGETS, fit_weights
from factorcell.training.per_value import INDEX_FILE as SEPARATE_INDEX_FILE
from factorcell.training.per_value import SeparateRuns

INDEX_FILE = "mixture.json"
FORMAT = 1  # version of the index file

Array = NDArray[np.float64]


class Mixture:
    """A linear mixture of models with the same vocabulary.

    A corpus of a mixture contains the column of `variable`, if any, and then the context columns of each model.

    Args:
        folder: The folder of the mixture.
        models: The models.
        variable: The context variable whose values have separate weights, or None.
        weights: The weights (values, M). Row 0 has the weights for all texts, and each further row those for one value
            of the variable.
    """

    def __init__(self, folder: Path, models: Sequence[Scorer], variable: Variable | None, weights: Array) -> None:
        self.folder, self.models, self.variable, self.weights = folder, list(models), variable, weights
        self.tokenizer = models[0].tokenizer
        for model in models:
            if model.tokenizer.tokens != self.tokenizer.tokens:
                raise UserError(f"{models[0].folder} and {model.folder}: cannot mix models with different vocabularies")
        mixture_variables = () if variable is None else (variable,)
        model_variables = (variable for model in models for variable in model.schema.variables)
        self.schema = ContextSchema((*mixture_variables, *model_variables))
        runs: list[Any] = [model for model in models if hasattr(model, "precision")]  # n-gram models have no precision
        self.precision: str = runs[0].precision if runs else FLOAT32

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "cpu", precision: str = AUTO) -> "Mixture":
        """Open a mixture that `save` wrote.

        Args:
            folder: The folder of the mixture.
            device: The device to compute on: "cpu", "cuda" or "auto".
            precision: The precision of matrix products: "float32", "bfloat16" or "auto".

        Raises:
            UserError: If a file is missing or not valid.
        """
        folder = Path(folder)
        saved = files.read_versioned(folder / INDEX_FILE, FORMAT, folder)
        try:
            paths = [folder / path for path in saved["models"]]
            have_ngrams = [bool(value) for value in saved["have_ngrams"]]
            column = {"name": saved["by"], "kind": "category", "values": saved["values"], "counts": saved["counts"]}
            schema = ContextSchema.from_dict({"variables": [column] if saved["by"] else []})
            variable = next(iter(schema.variables), None)
            weights = np.array(saved["weights"], dtype=np.float64)
            has_valid_shape = weights.shape == (1 if variable is None else len(variable.values), len(paths))
            has_valid_shape &= len(have_ngrams) == len(paths)
            # These comparisons also reject NaN.
            if not (paths and has_valid_shape and (weights >= 0).all() and np.allclose(weights.sum(axis=1), 1)):
                raise ValueError("expected weights of at least 0 that sum to 1 over the models, for each value")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / INDEX_FILE}: not a mixture ({error})") from None
        models: list[Scorer] = []
        for path, has_ngrams in zip(paths, have_ngrams, strict=True):
            if has_ngrams:
                models.append(open_scorer(path, device=device, precision=precision))
            else:
                models.append(Run.open(path, mixture=False, device=device, precision=precision))
        return cls(folder, models, variable, weights)

    def save(self) -> None:
        """Write the weights and the paths of the models, relative to the folder."""
        files.create_new_folder(self.folder)
        files.create_manifest(self.folder, (INDEX_FILE,))
        variable = self.variable or Variable("", "category")
        content = {
            "models": [os.path.relpath(model.folder, self.folder) for model in self.models],
            "have_ngrams": [not isinstance(model, Run) or model.mixture is not None for model in self.models],
            "by": variable.name or None,
            "values": variable.values,
            "counts": variable.counts,
            "weights": self.weights.tolist(),
        }
        files.write_versioned(self.folder / INDEX_FILE, content, FORMAT)

    def prepare(self, source: Any, *, unknown: str = "group") -> Corpus:
        """Read texts with every model, and combine the context columns of all models in one corpus.

        Raises:
            UserError: If the models read the texts as different tokens.
        """
        corpora = [model.prepare(source, unknown=unknown) for model in self.models]
        for model, corpus in zip(self.models, corpora, strict=True):
            if not np.array_equal(corpus.tokens, corpora[0].tokens):
                raise UserError(
                    f"{self.models[0].folder} and {model.folder}: cannot mix models that read texts differently "
                    "(tokenizer, lower case, punctuation or longest text)"
                )
        category_columns = [corpus.categories for corpus in corpora]
        if self.variable is not None:
            _, value_indices = _read_values(source, self.variable)
            category_columns.insert(0, value_indices[corpora[0].source_rows, None])
        return replace(
            corpora[0],
            schema=self.schema,
            categories=np.concatenate(category_columns, axis=1),
            numbers=np.concatenate([corpus.numbers for corpus in corpora], axis=1),
            vectors=tuple(vectors for corpus in corpora for vectors in corpus.vectors),
            words=tuple(words for corpus in corpora for words in corpus.words),
            prompts=tuple(prompt for corpus in corpora for prompt in corpus.prompts),
        )

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Return the nats of all targets of `corpus`, text after text."""
        target_weights = np.repeat(self.weights[self.weight_rows(corpus)], corpus.lengths, axis=0)
        return mixed_nats(self.model_nats(corpus), target_weights).astype(np.float32)

    def model_nats(self, corpus: Corpus) -> Array:
        """Return the nats (N, M) of every target under each model."""
        # For each kind of variable, the columns of a model begin where those of the model before it end.
        nats_by_model, starts = [], [int(self.variable is not None), 0, 0, 0, 0]
        for model in self.models:
            schema = model.schema
            kinds = (schema.categories, schema.numbers, schema.vectors, schema.texts, schema.prompts)
            ends = [start + len(variables) for start, variables in zip(starts, kinds, strict=True)]
            categories, numbers, vectors, texts, prompts = (slice(*bounds) for bounds in zip(starts, ends, strict=True))
            model_corpus = replace(
                corpus,
                schema=schema,
                categories=corpus.categories[:, categories],
                numbers=corpus.numbers[:, numbers],
                vectors=corpus.vectors[vectors],
                words=corpus.words[texts],
                prompts=corpus.prompts[prompts],
            )
            starts = ends
            nats_by_model.append(model.nats(model_corpus).astype(np.float64))
        return np.stack(nats_by_model, axis=1)

    def fit(self, corpus: Corpus) -> "Mixture":
        """Return a mixture of the same models whose weights maximize the likelihood of `corpus`."""
        nats = self.model_nats(corpus)
        row_of_target = np.repeat(self.weight_rows(corpus), corpus.lengths)
        weights = np.empty_like(self.weights)
        weights[0] = fit_weights(nats)
        for row in range(1, len(weights)):
            weights[row] = fit_weights(nats[row_of_target == row], PRIOR_TARGETS * weights[0])
        return Mixture(self.folder, self.models, self.variable, weights)

    def weight_rows(self, corpus: Corpus) -> NDArray[np.int64]:
        """Return the row of `weights` for each text (texts,): that of its value, or 0 for a missing or new value."""
        if self.variable is None:
            return np.zeros(len(corpus), dtype=np.int64)
        return np.maximum(corpus.categories[:, 0], 0).astype(np.int64)


def _read_values(source: Any, variable: Variable) -> tuple[Variable, NDArray[np.int32]]:
    """Read the column of `variable`; return the variable and, for each row, the index of its value in the variable.

    If `variable` has no values yet, the returned variable has the values of the column.
    """
    table, offset = open_table(source), 0
    reader = CategoryReader(Variable(variable.name, "category"), table.name)
    for chunk in table.chunks([variable.name]):
        values = chunk[variable.name]
        reader.add(values, range(offset + 1, offset + 1 + len(values)))
        offset += len(values)
    complete = variable if variable.values else reader.build_variable(DataConfig(min_context_count=1))
    return complete, reader.encode(complete)


def mix(
    models: Sequence[Scorer], dev: Any, folder: str | Path, *, by: str | None = None, unknown: str = "group"
) -> tuple[Mixture, list[files.Row]]:
    """Fit a mixture to a table and save it.

    Args:
        models: Runs, n-gram models, separate runs or mixtures that have the same vocabulary.
        dev: The table whose likelihood is maximized.
        folder: The folder of the mixture.
        by: A column; each of its values has separate weights.
        unknown: How to read context values that training never saw: "error", "group" or "expected".

    Returns:
        The mixture, and result rows: one for all texts, and one for each value. A row has the `perplexity` of the
        mixture, and lists with the weight (`weights`) and the perplexity (`alone`) of each model.

    Raises:
        UserError: If the folder exists, a table is not valid, or the models have different vocabularies.
    """
    folder = Path(folder)
    if not files.is_new(folder):
        raise files.folder_exists_error(folder)
    if not models:
        raise UserError("models: a mixture needs at least one model")
    check_unknown(unknown)
    variable, names = None, ["all texts"]
    if by is not None:
        variable, _ = _read_values(dev, Variable(by, "category"))
        _, *frequent_values = variable.values  # the first is the unknown value
        names += frequent_values
    equal_weights = np.full((len(names), len(models)), 1 / len(models))
    mixture = Mixture(folder, models, variable, equal_weights)
    corpus = mixture.prepare(dev, unknown=unknown)
    mixture = mixture.fit(corpus)
    mixture.save()
    nats_by_model, nats_of_mixture = mixture.model_nats(corpus), mixture.nats(corpus).astype(np.float64)
    row_of_target = np.repeat(mixture.weight_rows(corpus), corpus.lengths)
    rows = []
    for index, (name, weights) in enumerate(zip(names, mixture.weights, strict=True)):
        # The row 0 is for all texts.
        is_included = row_of_target == index if index else np.ones(len(row_of_target), dtype=bool)
        row = {
            "value": name,
            "targets": int(is_included.sum()),
            "perplexity": float(np.exp(nats_of_mixture[is_included].mean())),
            "alone": np.exp(nats_by_model[is_included].mean(axis=0)).tolist(),
            "weights": weights.tolist(),
        }
        rows.append(row)
    return mixture, rows


def open_scorer(folder: str | Path, *, device: str = "cpu", precision: str = AUTO) -> Scorer:
    """Open the run, n-gram model, separate runs or mixture in a folder.

    Args:
        folder: The folder of the model.
        device: The device to compute on: "cpu", "cuda" or "auto".
        precision: The precision of matrix products: "float32", "bfloat16" or "auto".

    Returns:
        The model.

    Raises:
        UserError: If the folder does not contain a model, or a file is not valid.
    """
    folder = Path(folder)
    if (folder / INDEX_FILE).is_file():
        return Mixture.open(folder, device=device, precision=precision)
    if (folder / SEPARATE_INDEX_FILE).is_file():
        return SeparateRuns.open(folder, device=device, precision=precision)
    return open_model(folder, device, precision)

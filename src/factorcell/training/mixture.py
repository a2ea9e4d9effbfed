"""Mixtures of several models, in a folder of their own: runs, n-gram models and other mixtures.

`model.mixture` computes the probabilities. The weights maximize the likelihood of a table: those for all texts, or
those for each value of a column (`mixture_weights`).

Shapes: N targets, M models, G groups of targets.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell.config import Config, DataConfig
from factorcell.data.columns.readers import CategoryReader
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Batch, Corpus
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.evaluation.results import open_model
from factorcell.io import files
from factorcell.io.input_files import CONFIG
from factorcell.ngram.mixture import FILE, FORMAT, Mixture, Predictor, context_parts, read_weights
from factorcell.ngram.ngram import NGram
from factorcell.nn.devices import AUTO, FLOAT32
from factorcell.nn.kernels import library
from factorcell.nn.scoring import mixed_nats
from factorcell.options.choices import check_unknown
from factorcell.runs.run import MAX_BATCH_TOKENS, Run
from factorcell.training.mixture_weights import fit_weights_by_group

Floats = NDArray[np.float64]


class MixedModels:
    """A linear mixture of models with the same vocabulary, which scores texts like a run.

    A corpus has the column of `variable`, if any, and then the context columns of the models; models with the same
    variables share their columns.

    Args:
        folder: The folder of the mixture.
        models: The models.
        variable: The context variable whose values have separate weights, or None.
        weights: The weights (G, M). Row 0 has the weights of texts without a known value of the variable, and each
            further row those of one of its values. By default, all models have the same weight.
    """

    def __init__(
        self,
        folder: Path,
        models: Sequence["Model"],
        variable: Variable | None = None,
        weights: Floats | None = None,
    ) -> None:
        self.folder, self.models, self.variable = folder, list(models), variable
        self.config: Config = models[0].config
        self.tokenizer: Tokenizer = models[0].tokenizer
        for model in models:
            if model.tokenizer.tokens != self.tokenizer.tokens:
                raise UserError(f"{models[0].folder} and {model.folder}: cannot mix models with different vocabularies")
        self.precision: str = next((model.precision for model in models if not isinstance(model, NGram)), FLOAT32)
        self.schemas: list[ContextSchema] = []  # the distinct schemas of the models
        for model in models:
            if model.schema not in self.schemas:
                self.schemas.append(model.schema)
        schemas = [ContextSchema(() if variable is None else (variable,)), *self.schemas]
        self.schema: ContextSchema = ContextSchema(tuple(part for schema in schemas for part in schema.variables))
        _, *parts = context_parts(schemas)
        if weights is None:
            groups = 1 if variable is None else len(variable.values)
            weights = np.full((groups, len(models)), 1 / len(models))
        self.predictor = Mixture(
            [_predictor_of(model) for model in models],
            [parts[self.schemas.index(model.schema)] for model in models],
            weights,
            column=None if variable is None else 0,
        )

    @property
    def weights(self) -> Floats:
        """The weights (G, M)."""
        return self.predictor.weights

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "cpu", precision: str = AUTO) -> "MixedModels":
        """Open a mixture that `save` wrote.

        Args:
            folder: The folder of the mixture.
            device: The device to compute on: "cpu", "cuda" or "auto".
            precision: The precision of matrix products: "float32", "bfloat16" or "auto".

        Raises:
            UserError: If a file is missing or not valid.
        """
        folder = Path(folder)
        saved = files.read_versioned(folder / FILE, FORMAT, folder)
        try:
            paths = [folder / path for path in saved["models"]]
            by = None if saved["by"] is None else {**saved["by"], "kind": "category"}
            schema = ContextSchema.from_dict({"variables": [by] if by else []})
            variable = next(iter(schema.variables), None)
            weights = read_weights(saved, 1 if variable is None else len(variable.values), len(paths))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / FILE}: not a mixture ({error})") from None
        return cls(folder, [open_scorer(path, device=device, precision=precision) for path in paths], variable, weights)

    def save(self) -> None:
        """Write the weights and the paths of the models, relative to the folder."""
        files.create_manifest(self.folder, (FILE,))
        variable = self.variable
        content = {
            "models": [os.path.relpath(model.folder, self.folder) for model in self.models],
            "counts": None,
            "by": variable and {"name": variable.name, "values": variable.values, "counts": variable.counts},
            "weights": self.weights.tolist(),
        }
        files.write_versioned(self.folder / FILE, content, FORMAT)

    def prepare(self, source: Any, *, unknown: str = "group") -> Corpus:
        """Read texts with every model, and combine the context columns of all models in one corpus.

        Raises:
            UserError: If the models read the texts as different tokens.
        """
        readings, corpora = list[Any](), list[Corpus]()
        for model in self.models:
            reading = model.config.data, model.config.tokenizer, model.schema
            if reading in readings:  # models that read alike share one corpus
                continue
            readings.append(reading)
            corpora.append(model.prepare(source, unknown=unknown))
            if not np.array_equal(corpora[-1].tokens, corpora[0].tokens):
                raise UserError(
                    f"{self.models[0].folder} and {model.folder}: cannot mix models that read texts differently "
                    "(tokenizer, lower case, punctuation or longest text)"
                )
        parts = [next(corpus for corpus in corpora if corpus.schema == schema) for schema in self.schemas]
        corpus = corpora[0]
        category_columns = [part.categories for part in parts]
        if self.variable is not None:
            _, value_indices = _read_values(source, self.variable)
            category_columns.insert(0, value_indices[:, None])
        return replace(
            corpus,
            schema=self.schema,
            categories=np.concatenate(category_columns, axis=1),
            numbers=np.concatenate([part.numbers for part in parts], axis=1),
            vectors=tuple(vectors for part in parts for vectors in part.vectors),
            words=tuple(words for part in parts for words in part.words),
            prompts=tuple(prompt for part in parts for prompt in part.prompts),
        )

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Return the nats of all targets of `corpus`, text after text."""
        nats, groups = self.model_nats(corpus)
        return mixed_nats(nats, self.weights[groups]).astype(np.float32)

    def model_nats(self, corpus: Corpus) -> tuple[Floats, NDArray[np.int64]]:
        """Return the nats (N, M) of every target under each model, and the row of `weights` of each target (N,)."""
        with torch.inference_mode(), library.precision(self.precision, self.predictor.device):
            return self.predictor.target_nats(corpus, self._batches(corpus))

    def _batches(self, corpus: Corpus) -> Iterator[Batch]:
        for rows in corpus.batches(MAX_BATCH_TOKENS, max_texts=self.predictor.texts_at_once):
            yield corpus.batch(rows).to(self.predictor.device)

    def fit(self, corpus: Corpus) -> "MixedModels":
        """Return a mixture of the same models whose weights maximize the likelihood of `corpus`."""
        nats, groups = MixedModels(self.folder, self.models, self.variable).model_nats(corpus)
        weights = fit_weights_by_group(nats, groups, len(self.weights))
        return MixedModels(self.folder, self.models, self.variable, weights)


Model = Run | NGram | MixedModels


def _predictor_of(model: Model) -> Predictor:
    return Mixture.of_ngram(model) if isinstance(model, NGram) else model.predictor


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
        folders: The folders of the models: runs, n-gram models or mixtures that have the same vocabulary.
        dev: The table whose likelihood is maximized.
        folder: The folder of the mixture.
        by: A column; each of its values has separate weights.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        device: The device to compute on: "cpu", "cuda" or "auto".
        precision: The precision of matrix products: "float32", "bfloat16" or "auto".

    Returns:
        The mixture, and result rows: one for all texts, and one for each value. A row has the `perplexity` of the
        mixture, and lists with the weight (`weights`) and the perplexity (`alone`) of each model.

    Raises:
        UserError: If the folder exists, a table is not valid, or the models have different vocabularies.
    """
    folder = Path(folder)
    if not files.is_new(folder):
        raise files.folder_exists_error(folder)
    if not folders:
        raise UserError("models: a mixture needs at least one model")
    check_unknown(unknown)
    models = [open_scorer(path, device=device, precision=precision) for path in folders]
    variable, names = None, ["all texts"]
    if by is not None:
        variable, _ = _read_values(dev, Variable(by, "category"))
        _, *frequent_values = variable.values  # the first is the unknown value
        names += frequent_values
    mixture = MixedModels(folder, models, variable)
    corpus = mixture.prepare(dev, unknown=unknown)
    nats_by_model, groups = mixture.model_nats(corpus)
    weights_by_group = fit_weights_by_group(nats_by_model, groups, len(mixture.weights))
    mixture = MixedModels(folder, models, variable, weights_by_group)
    files.create_new_folder(folder)
    mixture.save()
    nats_of_mixture = mixed_nats(nats_by_model, weights_by_group[groups])
    rows = []
    for index, (name, weights) in enumerate(zip(names, weights_by_group, strict=True)):
        # The row 0 is for all texts.
        is_included = groups == index if index else np.ones(len(groups), dtype=bool)
        row = {
            "value": name,
            "targets": int(is_included.sum()),
            "perplexity": float(np.exp(nats_of_mixture[is_included].mean())),
            "alone": np.exp(nats_by_model[is_included].mean(axis=0)).tolist(),
            "weights": weights.tolist(),
        }
        rows.append(row)
    return mixture, rows


def open_scorer(folder: str | Path, *, device: str = "cpu", precision: str = AUTO) -> Model:
    """Open the run, n-gram model or mixture in a folder.

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
    if (folder / FILE).is_file() and not (folder / CONFIG).is_file():  # a run may have a mixture too
        return MixedModels.open(folder, device=device, precision=precision)
    return open_model(folder, device, precision)

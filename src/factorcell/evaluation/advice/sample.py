"""Data for `advise`: a sample of a table, the labels of its context columns, and train, tune and test texts.

Shapes: B texts, T targets, K values (label K is a missing value).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.columns.schema import UNKNOWN_VALUE, Variable
from factorcell.data.corpus import Corpus
from factorcell.data.tables.chunks import Table
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.evaluation.advice.conditional_ngram import IndexedTexts, ValueNGram
from factorcell.ngram import ngram
from factorcell.ngram.ngram import NGram
from factorcell.options.choices import ADVICE_ROWS

HELD_OUT, MAX_HELD_OUT = 0.1, 6000  # share and maximum number of held-out texts; half are tune, half test texts
MAX_VALUES = 2000  # maximum number of values of a column with their own label; rarer values share a label
TUNE_TARGETS = 4000  # approximate number of targets of the tune texts
TEST_TARGETS = 10_000, 30_000  # minimum and maximum of the approximate number of targets of the test texts
TEST_PRODUCTS = 3.0e11  # maximum of test targets * values * vocabulary size, which limits the computing time
BINS = 10  # number of quantile ranges of a numeric column
ORDER, CHARACTER_ORDER = 3, 6  # order of the n-gram models, in general and for characters

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LabelColumn:
    """A context column whose values have the labels 0 to K - 1; the label K stands for a missing value.

    `labels` (B,) has the label of each text. `rare` is the number of rare values, which share label 0. If `is_binned`
    is true, the values are ranges of numbers.
    """

    name: str
    kind: str
    values: tuple[str, ...]
    labels: Ids
    rare: int = 0
    is_binned: bool = False

    @property
    def has_rare_group(self) -> bool:
        """Whether the label 0 stands for rare values."""
        return self.kind == "category" and self.values[:1] == (UNKNOWN_VALUE,)


def sample(source: Any, columns: Sequence[str], rows: int = ADVICE_ROWS, seed: int = 0) -> tuple[Table, int]:
    """Draw at most `rows` rows of a table uniformly; return them as a table, and the number of rows of the source.

    The source is read once, and the rows keep their order. Each row gets a random key; the rows with the lowest keys
    are selected. Messages about the sample say that they count its rows, not those of the source.
    """
    table = open_table(source)
    generator, key_limit, row_count = np.random.default_rng(seed), 1.0, 0
    first_column = columns[0]
    selected: dict[str, list[Any]] = {name: [] for name in columns}
    keys = np.zeros(0)
    for chunk in table.chunks(columns):
        chunk_keys = generator.random(len(chunk[first_column]))
        row_count += len(chunk_keys)
        added_rows = np.flatnonzero(chunk_keys < key_limit)
        for name in selected:
            selected[name] += [chunk[name][row] for row in added_rows]
        keys = np.append(keys, chunk_keys[added_rows])
        if len(keys) > rows:
            key_limit = float(np.partition(keys, rows)[rows])
            remaining_rows = np.flatnonzero(keys < key_limit)
            selected = {name: [values[row] for row in remaining_rows] for name, values in selected.items()}
            keys = keys[remaining_rows]
    name = table.name if row_count <= rows else f"sample of {table.name} ({rows:,} of {row_count:,} rows)"
    return replace(open_table(selected), name=name), row_count


def label_columns(corpus: Corpus) -> list[LabelColumn]:
    """Return the context columns of a corpus with a label for each text; numbers are binned."""
    schema, columns = corpus.schema, []
    for variable in schema.variables:
        if variable.kind == "category":
            ids = corpus.categories[:, schema.categories.index(variable)].astype(np.int64)
            values = variable.values[: MAX_VALUES + 1]
            ids = np.where(ids >= len(values), 0, ids)  # further values count as rare
            labels = np.where(ids < 0, len(values), ids)
            rare_count = variable.rare_count + len(variable.values) - len(values)
            columns.append(LabelColumn(variable.name, "category", values, labels, rare_count))
        elif variable in schema.numbers:
            columns.append(_bin_numbers(variable, corpus.numbers[:, schema.numbers.index(variable)]))
        else:
            raise UserError(
                f"{variable.name}: expected a category, a number or a time, got a variable of kind {variable.kind}"
            )
    return columns


def _bin_numbers(variable: Variable, numbers: NDArray[np.float32]) -> LabelColumn:
    """Label a numeric column with its quantile ranges, or with its distinct values if there are at most `BINS`."""
    is_missing = np.isnan(numbers)
    present_numbers = numbers[~is_missing]
    edges = np.unique(present_numbers)
    is_binned = len(edges) > BINS
    if is_binned:
        edges = np.unique(np.quantile(present_numbers, np.linspace(0, 1, BINS + 1)[:-1]))
    labels = np.where(is_missing, len(edges), np.searchsorted(edges, numbers, side="right") - 1)
    values = tuple(f"from {edge:.4g}" for edge in edges)
    return LabelColumn(variable.name, variable.kind, values, labels, is_binned=is_binned)


@dataclass(frozen=True)
class Split:
    """A corpus split into train texts (for counts), tune texts (for fitting parameters) and test texts.

    `model` is the n-gram model of the train texts.
    """

    corpus: Corpus
    model: NGram
    rows: tuple[Ids, Ids, Ids]  # indices of the train, tune and test texts in the corpus
    train: IndexedTexts
    tune: IndexedTexts
    test: IndexedTexts
    baseline: NDArray[np.float64]  # log probabilities of the test targets (T,) in the model "nothing"

    @classmethod
    def from_corpus(cls, corpus: Corpus, config: Config, value_count: int, seed: int) -> "Split":
        """Split a corpus whose columns have at most `value_count` values; the more values, the fewer test texts."""
        shuffled = np.random.default_rng(seed).permutation(len(corpus))
        held_out_count = min(MAX_HELD_OUT, max(4, int(HELD_OUT * len(corpus))))
        tune_rows, test_rows, train_rows = np.split(shuffled, [held_out_count // 2, held_out_count])
        test_targets = int(np.clip(TEST_PRODUCTS / (value_count * len(corpus.tokenizer)), *TEST_TARGETS))
        tune_rows = _first_rows(corpus, tune_rows, TUNE_TARGETS)
        test_rows = _first_rows(corpus, test_rows, test_targets)
        train_texts, tune_texts, test_texts = (corpus.select(rows) for rows in (train_rows, tune_rows, test_rows))
        order = CHARACTER_ORDER if corpus.tokenizer.is_character_level else ORDER
        grams = ngram.count_ngrams(train_texts, order)
        model = NGram(Path(), config.with_options(context=()), corpus.tokenizer, grams)
        train = IndexedTexts.from_corpus(model, train_texts, only_counted=True)
        tune, test = (IndexedTexts.from_corpus(model, texts) for texts in (tune_texts, test_texts))
        # The model "nothing" is the conditional model of a column with one value, the label 0 of every text.
        train_labels, tune_labels, test_labels = (
            np.zeros(len(texts), dtype=np.int64) for texts in (train_texts, tune_texts, test_texts)
        )
        unconditional = ValueNGram(model, train, train_labels, value_count=1)
        unconditional.fit_longer(tune, tune_labels, np.exp(tune.base))
        baseline = np.log(unconditional.apply_longer(test, test_labels, np.exp(test.base)))
        rows = train_rows, tune_rows, test_rows
        return cls(corpus=corpus, model=model, rows=rows, train=train, tune=tune, test=test, baseline=baseline)

    def labels(self, column: LabelColumn) -> tuple[Ids, Ids, Ids]:
        """Return the labels of a column for the train, tune and test texts."""
        train, tune, test = (column.labels[rows] for rows in self.rows)
        return train, tune, test


def _first_rows(corpus: Corpus, rows: Ids, targets: int) -> Ids:
    """Return the first of `rows`, at least two, whose texts have about `targets` targets together."""
    return rows[: max(2, int(np.searchsorted(np.cumsum(corpus.lengths[rows]), targets)))]

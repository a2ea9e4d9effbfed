"""The data of an advice: a sample of a table, its context columns as labels, and train, tune and test texts.

Shapes: B texts, T targets, K values (and one more for missing).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.choices import ADVICE_ROWS
from factorcell.config import Config, UserError
from factorcell.data.corpus import Corpus
from factorcell.data.schema import Variable
from factorcell.data.tables import open_table
from factorcell.evaluation import ngram
from factorcell.evaluation.advice.conditional_ngram import IndexedTexts, ValueNGram
from factorcell.evaluation.ngram import NGram

HELD_OUT, MOST_HELD = 0.1, 6000  # share and maximal number of held-out texts: half are tune, half test texts
VALUES = 2000  # maximal number of values of a column; rarer ones share a label
TUNED, JUDGED, PRODUCTS = 4000, (10_000, 30_000), 3.0e11  # tune targets, test targets, multiplications for the latter
BINS = 10  # quantiles of a numeric column
ORDER, ORDER_OF_CHARACTERS = 3, 6  # of the n-gram models

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LabelColumn:
    """A context column: `labels` (B,) are 0 to K - 1, and K if missing; `rare` counts the values with label 0."""

    name: str
    kind: str
    values: tuple[str, ...]
    labels: Ids
    rare: int = 0


def sample(
    source: Any, columns: Sequence[str], rows: int = ADVICE_ROWS, seed: int = 0
) -> tuple[dict[str, list[Any]], int]:
    """Draw at most `rows` of a table uniformly, in one pass and in order; return them as columns, and the row count."""
    random, bound, total = np.random.default_rng(seed), 1.0, 0
    kept: dict[str, list[Any]] = {name: [] for name in columns}
    keys = np.zeros(0)
    for chunk in open_table(source).chunks(columns):
        drawn = random.random(len(chunk[columns[0]]))
        total += len(drawn)
        near = np.flatnonzero(drawn < bound)
        for name in kept:
            kept[name] += [chunk[name][place] for place in near]
        keys = np.append(keys, drawn[near])
        if len(keys) > rows:
            bound = float(np.partition(keys, rows)[rows])
            among = np.flatnonzero(keys < bound)
            kept = {name: [values[place] for place in among] for name, values in kept.items()}
            keys = keys[among]
    return kept, total


def columns_of(corpus: Corpus) -> list[LabelColumn]:
    schema, found = corpus.schema, []
    for variable in schema.variables:
        if variable.kind == "category":
            ids = corpus.categories[:, schema.categories.index(variable)].astype(np.int64)
            values = variable.values[: VALUES + 1]
            ids = np.where(ids >= len(values), 0, ids)
            labels, rare = np.where(ids < 0, len(values), ids), variable.rare_count + len(variable.values) - len(values)
            found.append(LabelColumn(variable.name, "category", values, labels, rare))
        elif variable in schema.numbers:
            found.append(_binned(variable, corpus.numbers[:, schema.numbers.index(variable)]))
        else:
            raise UserError(f"{variable.name} is a {variable.kind}; advice is on categories, numbers and times")
    return found


def _binned(variable: Variable, numbers: NDArray[np.float32]) -> LabelColumn:
    """Label a numeric column by quantile ranges, or by its values if they are few."""
    edges = np.unique(numbers)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(numbers, np.linspace(0, 1, BINS + 1)[:-1]))
    labels = np.searchsorted(edges, numbers, side="right") - 1
    return LabelColumn(variable.name, variable.kind, tuple(f"from {edge:.4g}" for edge in edges), labels)


@dataclass(frozen=True)
class Split:
    """The train, tune and test texts of a corpus, and a base model; tune texts fit what counts do not determine."""

    corpus: Corpus
    model: NGram
    rows: tuple[Ids, Ids, Ids]  # of `train`, `tune`, `test` in the corpus
    train: IndexedTexts
    tune: IndexedTexts
    test: IndexedTexts
    nothing: NDArray[np.float64]  # log probabilities of the targets of `test` (T,) by a model of a single value

    @classmethod
    def of(cls, corpus: Corpus, config: Config, values: int, seed: int, progress: bool = False) -> "Split":
        """Split a corpus whose columns have at most `values` values; more values mean fewer test texts."""
        order = np.random.default_rng(seed).permutation(len(corpus))
        held = min(MOST_HELD, max(4, int(HELD_OUT * len(corpus))))
        judging = int(np.clip(PRODUCTS / (values * len(corpus.tokenizer)), *JUDGED))
        few, more = order[: held // 2], order[held // 2 : held]
        rows = order[held:], _first(corpus, few, TUNED), _first(corpus, more, judging)
        parts = [corpus.select(part) for part in rows]
        counts = ngram.count_ngrams(
            parts[0], ORDER_OF_CHARACTERS if corpus.tokenizer.is_character_level else ORDER, progress
        )
        model = NGram(Path(), config.with_options(context=()), corpus.tokenizer, counts)
        train, tune, test = (IndexedTexts.find(model, part, counted=part is parts[0]) for part in parts)
        single = ValueNGram(model, train, np.zeros(len(parts[0]), dtype=np.int64), 1)
        single.fit_longer(tune, np.zeros(len(parts[1]), dtype=np.int64), np.exp(tune.base))
        nothing = np.log(single.lengthen(test, np.zeros(len(parts[2]), dtype=np.int64), np.exp(test.base)))
        return cls(corpus, model, rows, train, tune, test, nothing)

    def labels(self, column: LabelColumn) -> tuple[Ids, Ids, Ids]:
        train, tune, test = (column.labels[rows] for rows in self.rows)
        return train, tune, test


def _first(corpus: Corpus, rows: Ids, targets: int) -> Ids:
    """Return the first of `rows`, at least two, that have about `targets` targets together."""
    return rows[: max(2, int(np.searchsorted(np.cumsum(corpus.lengths[rows]), targets)))]

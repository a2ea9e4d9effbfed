"""The kinds of context columns: which reader a column gets, and the readers of texts and vectors.

A text is a bag of those of its words, lower-cased, that training saw often enough, whatever units the model reads.
A vector is a list of numbers: an Arrow list, a NumPy array, or in text a JSON array. A missing text, like a missing
category, has the expected value; a missing vector is an error unless the caller chose `unknown="expected"`.
"""

import json
import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from factorcell.choices import UNKNOWN_POLICIES
from factorcell.config import DataConfig, Notice, UserError, choose
from factorcell.data.chunks import Table
from factorcell.data.schema import KINDS, PERIODS, TIMES, ContextSchema, Variable
from factorcell.data.tables import open_table
from factorcell.data.tokenizer import splitter
from factorcell.data.values import (
    LARGEST,
    CategoryColumn,
    NumberColumn,
    deviations,
    empty,
    is_missing,
    quoted,
    to_number,
)

GUESS_ROWS = 100_000  # a kind is guessed from this many rows at most
FEW = 20  # at most this many whole numbers are taken for the names of categories, such as ratings
NEARLY = 0.9  # share of a column's values that are numbers, from which the others may be mistakes


class Ragged(NamedTuple):
    """Lists of different lengths, one per row: flat `values`, and `offsets` (rows + 1) where each begins."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def select(self, rows: NDArray[np.int64]) -> "Ragged":
        """The lists of `rows` alone, in that order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.values[index], offsets)

    def joined(self, other: "Ragged") -> "Ragged":
        """These lists and then those of `other`."""
        values = np.concatenate([self.values, other.values]).astype(self.values.dtype)
        return Ragged(values, np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]]))


class TextColumn:
    """A column of texts as it is read."""

    def __init__(self, name: str, column: str, where: str, config: DataConfig) -> None:
        self.name, self.column, self.where, self.config = name, column, where, config
        self.split = splitter(DataConfig(unit="word", lowercase=True, strip_punctuation=True))
        self.ids: defaultdict[str, int] = defaultdict()  # provisional, in order of appearance
        self.ids.default_factory = self.ids.__len__
        self.words: list[NDArray[np.int32]] = []
        self.sizes: list[int] = []

    def add(self, values: list[Any], before: int) -> None:
        """Take one chunk; `before` rows came earlier."""
        flat: list[int] = []
        for row, value in enumerate(values, before + 1):
            if not isinstance(value, str) and not is_missing(value):
                raise UserError(f"{self.where} row {row}: {self.column} is {quoted(value)}, not a text")
            words = self.split(value) if isinstance(value, str) else []
            flat.extend(map(self.ids.__getitem__, words))
            self.sizes.append(len(words))
        self.words.append(np.array(flat, dtype=np.int32))

    def variable(self, min_count: int) -> Variable:
        """The variable that this column makes: its frequent words, and what each adds to the mean embedding."""
        least, most = self.config.min_context_word, self.config.max_context_words
        counts = np.bincount(np.concatenate(self.words), minlength=len(self.ids)).tolist()
        seen = [(-count, word) for word, count in zip(self.ids, counts, strict=True) if count >= least]
        if not seen:
            often = f"no word that training sees {least} times (min_context_word)"
            raise UserError(f"{self.where}: {self.column} has {often}, so it is no context")
        words = tuple(word for _, word in sorted(seen)[:most])
        bags = self._bags(words)
        sizes = np.diff(bags.offsets)
        weights = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes) / (sizes > 0).sum()
        shares = np.bincount(bags.values, weights, minlength=len(words))
        return Variable(self.name, "text", values=words, shares=tuple(shares.tolist()))

    def array(self, variable: Variable) -> Ragged:
        """The known words of all rows in `variable`."""
        return self._bags(variable.values)

    def _bags(self, words: Sequence[str]) -> Ragged:
        index = {word: row for row, word in enumerate(words)}
        final = np.array([index.get(word, -1) for word in self.ids], dtype=np.int32)[np.concatenate(self.words)]
        rows = np.repeat(np.arange(len(self.sizes)), self.sizes)[final >= 0]
        sizes = np.bincount(rows, minlength=len(self.sizes))
        return Ragged(final[final >= 0], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


class VectorColumn:
    """A column of vectors as it is read; all have the length of the first, or of those in training."""

    def __init__(self, name: str, column: str, where: str, known: Variable | None, unknown: str) -> None:
        self.name, self.column, self.where, self.unknown = name, column, where, unknown
        self.size = len(known.means) if known else 0
        self.of = "as in training" if known else "as in the first row"
        self.rows: list[NDArray[np.float32]] = []

    def add(self, values: list[Any], before: int) -> None:
        """Take one chunk; `before` rows came earlier."""
        vectors = []
        for row, value in enumerate(values, before + 1):
            missing = is_missing(value)
            vector = None if missing else to_vector(value)
            if vector is None and not (missing and self.unknown == "expected"):
                got = empty("not a list of numbers") if missing else f"{quoted(value)}, not a list of numbers"
                raise UserError(f"{self.where} row {row}: {self.column} is {got}")
            if vector is not None:
                self.size = self.size or len(vector)
                if len(vector) != self.size:
                    got = f"has {len(vector)} numbers; it must have {self.size}, {self.of}"
                    raise UserError(f"{self.where} row {row}: {self.column} {got}")
            vectors.append(vector)
        gap = np.full(self.size, math.nan, dtype=np.float32)
        self.rows.append(np.stack([gap if vector is None else vector for vector in vectors]))

    def variable(self, min_count: int) -> Variable:
        """The variable that this column makes, with the moments of every number."""
        rows = np.concatenate(self.rows)
        means, spread = rows.mean(0, dtype=np.float64), deviations(rows)
        return Variable(self.name, "vector", means=tuple(means.tolist()), deviations=tuple(spread.tolist()))

    def array(self, variable: Variable) -> NDArray[np.float32]:
        """The vectors of all rows (rows, D), NaN where missing."""
        return np.concatenate(self.rows)


Reader = CategoryColumn | NumberColumn | TextColumn | VectorColumn


def to_vector(value: Any) -> NDArray[np.float32] | None:
    """A list of at least one number that 32 bits hold (text: a JSON array), or None."""
    try:
        array = np.asarray(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # not JSON, or nested lists of different lengths
        return None
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iuf":
        return None
    wide = array.astype(np.float64)
    return wide.astype(np.float32) if (np.abs(wide) <= LARGEST).all() else None


def parse_column(text: str) -> tuple[str, str | None, float]:
    """`NAME`, `NAME:KIND` or `NAME:cyclic=PERIOD` -> name, kind and period (0: none)."""
    name, colon, given = text.rpartition(":")
    if not colon:
        return text, None, 0.0
    kind, equals, period = given.partition("=")
    choose("kind of context column", kind, KINDS)
    if kind != "cyclic":
        if equals:
            raise UserError(f"context column {text!r}: only cyclic takes a period")
        return name, kind, PERIODS.get(kind, 0.0)
    number = to_number(period)
    if number is None or number <= 0:
        raise UserError(f"context column {text!r}: say its period, a number above 0, as in {name}:cyclic=24")
    return name, kind, number


def column_readers(
    table: Table,
    config: DataConfig,
    schema: ContextSchema | None,
    unknown: str,
    optional: tuple[str, ...] = (),
) -> list[Reader]:
    """A reader for every context variable: as the schema says, or the config, or as the first rows let us guess."""
    choose("policy for unknown values", unknown, UNKNOWN_POLICIES)
    if schema is None:
        return _new_readers(table, config)
    policy = {v.name: _policy(v, config, unknown, optional) for v in schema.variables}
    for variable in schema.variables:
        if variable.source not in table.columns and policy[variable.name] != "expected":
            raise table.lacks(variable.source, (("unknown", "expected"),))
    return [_reader(v, table.name, config, policy[v.name], known=True) for v in schema.variables]


def must_have(source: Any, config: DataConfig) -> None:
    """`UserError` if a table lacks the text or a context column of training: at once, before anything is read.

    For callers who offer no policy for what is missing.
    """
    table = open_table(source)
    for name in (config.text, *(parse_column(text)[0] for text in config.columns)):
        if name not in table.columns:
            lacking = table.lacks(name)
            every = "it must have every context column of training"
            raise lacking if name == config.text else UserError(f"{lacking.message}; {every}")


def _policy(variable: Variable, config: DataConfig, unknown: str, optional: tuple[str, ...]) -> str:
    """What to do with a value of `variable` that was never seen: all users are unknown where no name was kept."""
    if variable.name in optional:
        return "expected"
    nameless = config.anonymous and variable.source == config.user
    return "group" if nameless and unknown == "error" else unknown


def new_schema(readers: Sequence[Reader], min_count: int, own: Mapping[str, int] | None = None) -> ContextSchema:
    """The variables that the columns make once they are read.

    Values of a category that are rarer than `min_count`, or than its `own`, are grouped.
    """
    made = ((reader, reader.variable((own or {}).get(reader.column, min_count))) for reader in readers)
    return ContextSchema(tuple(replace(v, column=r.column if r.column != r.name else "") for r, v in made))


def _new_readers(table: Table, config: DataConfig) -> list[Reader]:
    """The readers of training data, whose variables are named by their columns, or by column and kind."""
    wanted = [parse_column(text) for text in config.columns]
    columns = [column for column, _, _ in wanted]
    names = []
    for column, kind, _ in wanted:
        if column not in table.columns:
            raise table.lacks(column)
        names.append(f"{column}.{kind}" if kind in TIMES or (kind and columns.count(column) > 1) else column)
        if names.count(names[-1]) > 1 or (kind is None and columns.count(column) > 1):
            raise UserError(f"context column {names[-1]!r} is named twice; each time needs a kind of its own")
    guesses = _guess(table, [column for column, kind, _ in wanted if kind is None])
    readers = []
    for name, (column, kind, period) in zip(names, wanted, strict=True):
        kind = kind or guesses[column]
        policy = "group" if kind == "category" else "error"
        new = Variable(name, kind, column=column, period=period)
        readers.append(_reader(new, table.name, config, policy, known=False))
    return readers


def _reader(variable: Variable, where: str, config: DataConfig, unknown: str, *, known: bool) -> Reader:
    """The reader of a variable, which is `known` if training has read its column."""
    name, column, found = variable.name, variable.source, variable if known else None
    if variable.kind == "category":
        return CategoryColumn(name, column, where, found, unknown, private=column == config.user)
    if variable.kind == "text":
        return TextColumn(name, column, where, config)
    if variable.kind == "vector":
        return VectorColumn(name, column, where, found, unknown)
    return NumberColumn(variable, where, unknown, new=not known)


class _Guess:
    """The first values of a column: its `numbers`, how many `rows` have one, and of the `others` the first."""

    def __init__(self) -> None:
        self.numbers, self.rows, self.others = set[float](), 0, 0
        self.first: tuple[int, Any] = (0, None)  # row and value

    def add(self, values: Sequence[Any], before: int) -> None:
        for row, value in enumerate(values, before + 1):
            if (number := to_number(value)) is not None:
                self.numbers.add(number)
                self.rows += 1
            elif not is_missing(value):
                self.first = self.first if self.others else (row, value)
                self.others += 1

    @property
    def has_numbers(self) -> bool:
        """Whether there are numbers, and not just a few whole ones, such as ratings."""
        whole = all(number.is_integer() for number in self.numbers)
        return bool(self.numbers) and not (whole and len(self.numbers) <= FEW)


def _guess(table: Table, names: list[str]) -> dict[str, str]:
    """Guess the kinds of columns from their first rows; a `Notice` names a value that keeps one from being a number."""
    guesses, rows = {name: _Guess() for name in names}, 0
    for chunk in table.chunks(names) if names else ():
        for name in names:
            guesses[name].add(chunk[name], rows)
        rows += len(chunk[names[0]])
        if rows >= GUESS_ROWS:
            break
    for name, guess in guesses.items():
        if guess.has_numbers and 0 < guess.others <= (1 - NEARLY) * (guess.rows + guess.others):
            row, value = guess.first
            more = f", like {guess.others - 1:,} other values" if guess.others > 1 else ""
            read = f"all else are numbers, so {name} is read as a category; say {name}:number or {name}:category"
            what = f"{table.name} row {row}: {name} is {quoted(value)}, no number{more}; {read}"
            warnings.warn(Notice(what), stacklevel=2)
    return {name: "number" if g.has_numbers and not g.others else "category" for name, g in guesses.items()}

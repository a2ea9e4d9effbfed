"""Readers of context columns: each takes the values of its column in chunks and returns them as an array.

A text is a bag of those of its words, lower-cased, that training saw often enough, whatever units the model reads.
A vector is a list of numbers: an Arrow list, a NumPy array, or in text a JSON array. A missing category (null or an
empty field) and a missing text have the expected value; a missing number or vector is an error unless the caller chose
`unknown="expected"`.
"""

import difflib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from factorcell.config import DataConfig, UserError
from factorcell.data.schema import MISSING, UNKNOWN_VALUE, Variable, bloom_filter, may_contain, waves
from factorcell.data.tokenizer import WordTokenizer
from factorcell.data.values import (
    MAX_FLOAT32,
    category_name,
    category_name_or_none,
    is_missing,
    short_repr,
    to_hour,
    to_number,
    to_weekday,
    to_yearday,
)
from factorcell.option_fields import WordOptions


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

    def concatenate(self, other: "Ragged") -> "Ragged":
        """These lists and then those of `other`."""
        values = np.concatenate([self.values, other.values]).astype(self.values.dtype)
        return Ragged(values, np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]]))


class Column:
    """A column as it is read for a `variable`, which may be new: then its values say what the variable holds."""

    def __init__(self, variable: Variable, where: str, unknown: str = "error", *, known: bool = False) -> None:
        """Read the column of a `variable` in the table `where`; `known` if training has read it before."""
        self.of, self.column, self.where, self.unknown, self.known = (
            variable,
            variable.source_column,
            where,
            unknown,
            known,
        )
        self.rows = list[NDArray[Any]]()

    def add(self, values: list[Any], before: int) -> None:
        """Take one chunk; `before` rows came earlier."""
        raise NotImplementedError

    def variable(self, config: DataConfig) -> Variable:
        """Return the variable that the values make."""
        raise NotImplementedError

    def array(self, variable: Variable) -> Any:
        """Return the values of all rows in `variable`."""
        return np.concatenate(self.rows)

    def error(self, row: int, what: str) -> UserError:
        """Return the error about the value of a row."""
        return UserError(f"{self.where} row {row}: {self.column} {what}")


def deviations(values: NDArray[Any]) -> NDArray[np.float64]:
    """Standard deviation of each column of `values` (rows, n); 1 where its values are the same, but for rounding."""
    spread: NDArray[np.float64] = values.std(0, dtype=np.float64)
    return np.where(spread > 1e-12 * np.abs(values).max(0), spread, 1.0)


class _ValueIds(dict[Any, int]):
    """Provisional ids of the values of one type, from 1 on by the `names` of a column; 0 is a missing value."""

    def __init__(self, names: dict[str, int]) -> None:
        super().__init__()
        self.names = names

    def __missing__(self, value: Any) -> int:
        if is_missing(value):
            return 0
        self[value] = index = self.names.setdefault(category_name(value), len(self.names) + 1)
        return index


class CategoryColumn(Column):
    """A column of names; messages have no values of one that is `private`."""

    private = False

    def __init__(self, variable: Variable, where: str, unknown: str = "error", *, known: bool = False) -> None:
        super().__init__(variable, where, unknown, known=known)
        self.names = dict[str, int]()  # provisional ids, from 1 on
        # Values of different types have a dict each, because Python takes True, 1 and 1.0 for one key.
        self.types: defaultdict[type, _ValueIds] = defaultdict(lambda: _ValueIds(self.names))

    def add(self, values: list[Any], before: int) -> None:
        try:
            ids = (self.types[type(value)][value] for value in values)
            self.rows.append(np.fromiter(ids, dtype=np.int32, count=len(values)))
        except (TypeError, UserError):
            raise self._nameless(values, before) from None

    def _nameless(self, values: list[Any], before: int) -> UserError:
        """The error about the first of `values` that has no name: it is not hashable, or bytes that are not UTF-8."""
        for row, value in enumerate(values, before + 1):
            try:
                hash(value)
                category_name_or_none(value)
            except UserError as error:
                return UserError(f"{self.where} row {row}: {self.column}: {error.message}")
            except TypeError:
                hint = f" (a vector? say {self.column}:vector)" if isinstance(value, (list, tuple, np.ndarray)) else ""
                return self.error(row, f"is a {type(value).__name__}, not the name of a category{hint}")
        raise AssertionError("every value has a name")

    def variable(self, config: DataConfig) -> Variable:
        """Return the variable with the frequent values by falling count and the rare ones grouped."""
        least = config.min_user_count if self.column == config.user else config.min_context_count
        counts = np.bincount(self.provisional(), minlength=len(self.names) + 1)[1:].tolist()
        named = sorted(zip(self.names, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
        kept = {name: count for name, count in named if count >= least and name != UNKNOWN_VALUE}
        return replace(
            self.of,
            values=(UNKNOWN_VALUE, *kept),
            counts=(sum(counts) - sum(kept.values()), *kept.values()),
            rare_count=len(named) - len(kept),
            min_count=least,
            rare_filter=bloom_filter([name for name in self.names if name not in kept]),
        )

    def provisional(self) -> NDArray[np.int32]:
        """Return the ids of all rows as their values appeared, 1 upwards, those of rare values too; 0 where missing."""
        return np.concatenate(self.rows)

    def array(self, variable: Variable) -> NDArray[np.int32]:
        """Return the ids of all rows in `variable`; `UserError` of values never seen, if they are one."""
        rows, index = self.provisional(), {name: row for row, name in enumerate(variable.values)}
        if self.known and self.unknown == "error":
            grouped, valid = bytes.fromhex(variable.rare_filter), set(variable.values[1:])
            if never := [name for name in self.names if name not in valid and not may_contain(grouped, name)]:
                raise self._never_seen(never, rows, variable)
        other = MISSING if self.unknown == "expected" else 0
        final = [MISSING, *(index.get(name, other) for name in self.names)]
        return np.array(final, dtype=np.int32)[rows]

    def _never_seen(self, names: list[str], rows: NDArray[np.int32], variable: Variable) -> UserError:
        """The error about `names` that training never saw, with the row of the first."""
        ids = [self.names[name] for name in names]
        row, count = int(np.flatnonzero(rows == ids[0])[0]) + 1, int(np.isin(rows, ids).sum())
        what = f"{len(names):,} such values" if len(names) > 1 else "this value"
        more = f" ({what} in {count:,} of {len(rows):,} rows)" if count > 1 else ""
        rare = " or is a rare one" if variable.rare_count and not variable.rare_filter else ""
        values = variable.values[1:]
        near = [] if self.private else difflib.get_close_matches(names[0], values, n=3) or values[:5]
        listed = f" ({', '.join(near)}{', ...' if len(values) > len(near) else ''})" if near else ""
        said = f"{names[0]!r} was never seen in training{rare}{more}; it knows {len(values):,} values{listed}"
        error = self.error(row, said)
        return UserError(error.message, (("unknown", "group"), ("unknown", "expected")))


EMPTY = "empty, {}; fill it in or leave the row out"
TIME = "not a {} (ISO 8601, such as 2026-11-21T15:55)"
# Per kind, how a value is read, and what an error says of one that cannot be read.
READ: dict[str, tuple[Callable[[Any], float | None], str]] = {
    "number": (to_number, "not a number"),
    "longitude": (to_number, "not a number of degrees"),
    "cyclic": (to_number, "not a number"),
    "hour": (to_hour, TIME.format("time of day")),
    "weekday": (to_weekday, TIME.format("date")),
    "yearday": (to_yearday, TIME.format("date")),
}


class NumberColumn(Column):
    """A column of numbers; those with a period lie in [0, period)."""

    def add(self, values: list[Any], before: int) -> None:
        read, wrong = READ[self.of.kind]
        numbers = [read(value) for value in values]
        for row, (value, number) in enumerate(zip(values, numbers, strict=True), before + 1):
            if number is None and is_missing(value) and self.unknown != "expected":
                raise self.error(row, f"is {EMPTY.format(wrong.partition(' (')[0])}")
            if number is None and not is_missing(value):
                new = not self.known and self.of.kind == "number"  # a run cannot change the kind of a column
                hint = f" (a category? say {self.column}:category)" if new else ""
                raise self.error(row, f"is {short_repr(value)}, {wrong}{hint}")
        array = np.array([math.nan if number is None else number for number in numbers])
        self.rows.append(array % self.of.period if self.of.period else array)

    def variable(self, config: DataConfig) -> Variable:
        """Return the variable with the moments and the range of the numbers, or with the moments of their waves.

        The mean of a periodic number is the direction of the mean of all points of the circle.
        """
        rows, period = np.concatenate(self.rows), self.of.period
        if not period:
            mean, deviation, low, high = map(float, (rows.mean(), deviations(rows), rows.min(), rows.max()))
            return replace(self.of, mean=mean, deviation=deviation, low=low, high=high)
        turns, phases = map(np.array, waves(period))
        waved = np.sin(rows[:, None] * turns + phases)
        means = waved.mean(0)
        mean = math.atan2(means[0], means[1]) * period / (2 * math.pi) % period
        around = (rows - mean + period / 2) % period - period / 2
        return replace(
            self.of,
            mean=mean,
            deviation=float(deviations(mean + around)),
            means=tuple(means.tolist()),
            deviations=tuple(deviations(waved).tolist()),
        )


class TextColumn(Column):
    """A column of texts."""

    def __init__(self, variable: Variable, where: str, unknown: str = "error", *, known: bool = False) -> None:
        super().__init__(variable, where, unknown, known=known)
        self.split = WordTokenizer(WordOptions(strip_punctuation=True)).split
        self.ids: defaultdict[str, int] = defaultdict()  # provisional, in order of appearance
        self.ids.default_factory = self.ids.__len__
        self.sizes: list[int] = []

    def add(self, values: list[Any], before: int) -> None:
        flat: list[int] = []
        for row, value in enumerate(values, before + 1):
            if not isinstance(value, str) and not is_missing(value):
                raise self.error(row, f"is {short_repr(value)}, not a text")
            words = self.split(value) if isinstance(value, str) else []
            flat.extend(map(self.ids.__getitem__, words))
            self.sizes.append(len(words))
        self.rows.append(np.array(flat, dtype=np.int32))

    def variable(self, config: DataConfig) -> Variable:
        """Return the variable with the frequent words, and what each adds to the mean embedding."""
        least = config.min_context_word
        counts = np.bincount(np.concatenate(self.rows), minlength=len(self.ids)).tolist()
        seen = [(-count, word) for word, count in zip(self.ids, counts, strict=True) if count >= least]
        if not seen:
            often = f"no word that training sees {least} times (min_context_word)"
            raise UserError(f"{self.where}: {self.column} has {often}, so it is no context")
        words = tuple(word for _, word in sorted(seen)[: config.max_context_words])
        bags = self._bags(words)
        sizes = np.diff(bags.offsets)
        weights = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes) / (sizes > 0).sum()
        shares = np.bincount(bags.values, weights, minlength=len(words))
        return replace(self.of, values=words, shares=tuple(shares.tolist()))

    def array(self, variable: Variable) -> Ragged:
        """Return the known words of all rows in `variable`."""
        return self._bags(variable.values)

    def _bags(self, words: Sequence[str]) -> Ragged:
        index = {word: row for row, word in enumerate(words)}
        final = np.array([index.get(word, -1) for word in self.ids], dtype=np.int32)[np.concatenate(self.rows)]
        rows = np.repeat(np.arange(len(self.sizes)), self.sizes)[final >= 0]
        sizes = np.bincount(rows, minlength=len(self.sizes))
        return Ragged(final[final >= 0], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


class VectorColumn(Column):
    """A column of vectors, NaN where missing; all have the length of the first, or of those in training."""

    def add(self, values: list[Any], before: int) -> None:
        size = self.rows[0].shape[1] if self.rows else len(self.of.means)
        vectors = []
        for row, value in enumerate(values, before + 1):
            missing = is_missing(value)
            vector = None if missing else to_vector(value)
            if vector is None and not (missing and self.unknown == "expected"):
                wrong = "not a list of numbers"
                raise self.error(row, f"is {EMPTY.format(wrong) if missing else f'{short_repr(value)}, {wrong}'}")
            if vector is not None:
                size = size or len(vector)
                if len(vector) != size:
                    first = "as in training" if self.known else "as in the first row"
                    raise self.error(row, f"has {len(vector)} numbers; it must have {size}, {first}")
            vectors.append(vector)
        gap = np.full(size, math.nan, dtype=np.float32)
        self.rows.append(np.stack([gap if vector is None else vector for vector in vectors]))

    def variable(self, config: DataConfig) -> Variable:
        """Return the variable with the moments of every number."""
        rows = np.concatenate(self.rows)
        means, spread = rows.mean(0, dtype=np.float64), deviations(rows)
        return replace(self.of, means=tuple(means.tolist()), deviations=tuple(spread.tolist()))


def to_vector(value: Any) -> NDArray[np.float32] | None:
    """A list of at least one number that 32 bits hold (text: a JSON array), or None."""
    try:
        array = np.asarray(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # not JSON, or nested lists of different lengths
        return None
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iuf":
        return None
    wide = array.astype(np.float64)
    return wide.astype(np.float32) if (np.abs(wide) <= MAX_FLOAT32).all() else None

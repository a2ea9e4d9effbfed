"""Readers of context columns: each collects the values of one column in chunks and encodes them as an array.

A text is encoded as a bag of words: the ids of its lower-cased words, without those that are too rare in training. The
tokenizer of the model has no influence on it. A vector is a list of numbers: an Arrow list, a NumPy array, or a JSON
array in text. A missing category or text is encoded as missing; the model replaces it by the expected value of the
variable (docs/glossary.md). A missing number or vector raises a `UserError`, except with the policy "expected".
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
    """Lists of different lengths, one per row.

    Attributes:
        values: The items of all lists, one list after the other.
        offsets: The index of the first item of each list, followed by the number of items (rows + 1,).
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def select(self, rows: NDArray[np.int64]) -> "Ragged":
        """Return the lists of `rows`, in that order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.values[index], offsets)

    def concatenate(self, other: "Ragged") -> "Ragged":
        """Return these lists followed by the lists of `other`."""
        values = np.concatenate([self.values, other.values]).astype(self.values.dtype)
        return Ragged(values, np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]]))


class ColumnReader:
    """Base of the readers of a context column.

    In training, `build_variable` determines the variable from the values; a trained model has it in its schema.
    """

    def __init__(self, variable: Variable, table_name: str, unknown: str = "error", *, is_known: bool = False) -> None:
        """Prepare to read a column.

        Args:
            variable: The variable of a schema, or a new one of which only name, kind, column and period are set.
            table_name: The name of the table, for messages.
            unknown: The policy for category values that training never saw: "error", "group" (read as a rare value) or
                "expected" (read as a missing value). With "expected", numbers and vectors may be missing too.
            is_known: Whether `variable` comes from the schema of a trained model.
        """
        self.declared, self.column, self.table_name = variable, variable.source_column, table_name
        self.unknown, self.is_known = unknown, is_known
        self.chunks = list[NDArray[Any]]()

    def add(self, values: list[Any], first_row: int) -> None:
        """Add the values of one chunk; `first_row` is the number of rows of the table before this chunk."""
        raise NotImplementedError

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable that training determines from the values of all rows."""
        raise NotImplementedError

    def encode(self, variable: Variable) -> Any:
        """Return the values of all rows, encoded with the values and words of `variable`."""
        return np.concatenate(self.chunks)

    def error(self, row: int, problem: str) -> UserError:
        """Return the error about the value in a row, counted from 1."""
        return UserError(f"{self.table_name} row {row}: {self.column} {problem}")


def deviations(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the standard deviation of each column of `values` (rows, n), or 1 if all its values are equal."""
    spread: NDArray[np.float64] = values.std(0, dtype=np.float64)
    # Rounding errors can give equal values a small deviation.
    return np.where(spread > 1e-12 * np.abs(values).max(0), spread, 1.0)


class _ValueIds(dict[Any, int]):
    """Provisional ids of the values of one type: one id per category name, and 0 for missing values."""

    def __init__(self, ids_by_name: dict[str, int]) -> None:
        super().__init__()
        self.ids_by_name = ids_by_name

    def __missing__(self, value: Any) -> int:
        if is_missing(value):
            return 0
        self[value] = index = self.ids_by_name.setdefault(category_name(value), len(self.ids_by_name) + 1)
        return index


class CategoryReader(ColumnReader):
    """Reads a column of categories; if `is_private` is true, error messages do not list values of the column."""

    is_private = False

    def __init__(self, variable: Variable, table_name: str, unknown: str = "error", *, is_known: bool = False) -> None:
        super().__init__(variable, table_name, unknown, is_known=is_known)
        self.ids_by_name = dict[str, int]()  # provisional ids from 1 on, in order of appearance
        # Each type of values has its own dict, because True, 1 and 1.0 are the same key in Python.
        self.ids_by_type: defaultdict[type, _ValueIds] = defaultdict(lambda: _ValueIds(self.ids_by_name))

    def add(self, values: list[Any], first_row: int) -> None:
        try:
            ids = (self.ids_by_type[type(value)][value] for value in values)
            self.chunks.append(np.fromiter(ids, dtype=np.int32, count=len(values)))
        except (TypeError, UserError):
            raise self._invalid_value_error(values, first_row) from None

    def _invalid_value_error(self, values: list[Any], first_row: int) -> UserError:
        """Return the error about the first value that is not hashable, or is bytes that are not UTF-8."""
        for row, value in enumerate(values, first_row + 1):
            try:
                hash(value)
                category_name_or_none(value)
            except UserError as error:
                return UserError(f"{self.table_name} row {row}: {self.column}: {error.message}")
            except TypeError:
                is_list = isinstance(value, (list, tuple, np.ndarray))
                hint = f" (for vectors, use {self.column}:vector)" if is_list else ""
                return self.error(row, f"is a {type(value).__name__}, not the name of a category{hint}")
        raise AssertionError("every value has a name")

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the frequent values in order of decreasing count; rare values are grouped."""
        min_count = config.min_user_count if self.column == config.user else config.min_context_count
        counts = np.bincount(self.provisional_ids(), minlength=len(self.ids_by_name) + 1)[1:].tolist()
        ordered = sorted(zip(self.ids_by_name, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
        frequent = {name: count for name, count in ordered if count >= min_count and name != UNKNOWN_VALUE}
        return replace(
            self.declared,
            values=(UNKNOWN_VALUE, *frequent),
            counts=(sum(counts) - sum(frequent.values()), *frequent.values()),
            rare_count=len(ordered) - len(frequent),
            min_count=min_count,
            rare_filter=bloom_filter([name for name in self.ids_by_name if name not in frequent]),
        )

    def provisional_ids(self) -> NDArray[np.int32]:
        """Return the provisional id of each row's value, from 1 on in order of appearance; 0 for a missing value."""
        return np.concatenate(self.chunks)

    def encode(self, variable: Variable) -> NDArray[np.int32]:
        """Return the index of each row's value in `variable`; the policy "error" raises `UserError` for unseen ones."""
        ids, indices = self.provisional_ids(), {name: index for index, name in enumerate(variable.values)}
        if self.is_known and self.unknown == "error":
            rare_filter, frequent = bytes.fromhex(variable.rare_filter), set(variable.values[1:])
            if unseen := [
                name for name in self.ids_by_name if name not in frequent and not may_contain(rare_filter, name)
            ]:
                raise self._unseen_value_error(unseen, ids, variable)
        other_index = MISSING if self.unknown == "expected" else 0
        # The final index of each provisional id, which is 0 for a missing value.
        final_indices = [MISSING, *(indices.get(name, other_index) for name in self.ids_by_name)]
        return np.array(final_indices, dtype=np.int32)[ids]

    def _unseen_value_error(self, unseen: list[str], ids: NDArray[np.int32], variable: Variable) -> UserError:
        """Return the error about values that training never saw, which names the first of them and its row."""
        unseen_ids = [self.ids_by_name[name] for name in unseen]
        row, count = int(np.flatnonzero(ids == unseen_ids[0])[0]) + 1, int(np.isin(ids, unseen_ids).sum())
        affected = f"{len(unseen):,} such values" if len(unseen) > 1 else "this value"
        extent = f" ({affected} in {count:,} of {len(ids):,} rows)" if count > 1 else ""
        rare = " or is rare" if variable.rare_count and not variable.rare_filter else ""
        values = variable.values[1:]
        near = [] if self.is_private else difflib.get_close_matches(unseen[0], values, n=3) or values[:5]
        examples = f" ({', '.join(near)}{', ...' if len(values) > len(near) else ''})" if near else ""
        problem = f"{unseen[0]!r} was never seen in training{rare}{extent}; training has {len(values):,} values"
        error = self.error(row, problem + examples)
        return UserError(error.message, (("unknown", "group"), ("unknown", "expected")))


EMPTY = "empty, {}; fill it in or leave the row out"
NOT_A_TIME = "not a {} (ISO 8601, such as 2026-11-21T15:55)"
# The parser of each kind, and the end of the message about a value that it cannot read.
NUMBER_PARSERS: dict[str, tuple[Callable[[Any], float | None], str]] = {
    "number": (to_number, "not a number"),
    "longitude": (to_number, "not a number of degrees"),
    "cyclic": (to_number, "not a number"),
    "hour": (to_hour, NOT_A_TIME.format("time of day")),
    "weekday": (to_weekday, NOT_A_TIME.format("date")),
    "yearday": (to_yearday, NOT_A_TIME.format("date")),
}


class NumberReader(ColumnReader):
    """Reads a column of numbers or times; periodic numbers are reduced modulo their period."""

    def add(self, values: list[Any], first_row: int) -> None:
        parse, problem = NUMBER_PARSERS[self.declared.kind]
        numbers = [parse(value) for value in values]
        for row, (value, number) in enumerate(zip(values, numbers, strict=True), first_row + 1):
            if number is None and is_missing(value) and self.unknown != "expected":
                raise self.error(row, f"is {EMPTY.format(problem.partition(' (')[0])}")
            if number is None and not is_missing(value):
                # The kind of a column can be changed in training only.
                can_be_category = not self.is_known and self.declared.kind == "number"
                suggestion = f" (for a category, use {self.column}:category)" if can_be_category else ""
                raise self.error(row, f"is {short_repr(value)}, {problem}{suggestion}")
        array = np.array([math.nan if number is None else number for number in numbers])
        self.chunks.append(array % self.declared.period if self.declared.period else array)

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the mean, standard deviation and range of its numbers.

        A periodic number has no range; it has also the means and standard deviations of its waves (`schema.waves`). Its
        mean is the angle of the mean of its points on the unit circle.
        """
        numbers, period = np.concatenate(self.chunks), self.declared.period
        if not period:
            mean, deviation, low, high = map(float, (numbers.mean(), deviations(numbers), numbers.min(), numbers.max()))
            return replace(self.declared, mean=mean, deviation=deviation, low=low, high=high)
        frequencies, phases = map(np.array, waves(period))
        wave_values = np.sin(numbers[:, None] * frequencies + phases)
        means = wave_values.mean(0)
        mean = math.atan2(means[0], means[1]) * period / (2 * math.pi) % period  # of sine and cosine, the first waves
        # The distance of each number from the mean on the circle, from -period / 2 to period / 2.
        centered = (numbers - mean + period / 2) % period - period / 2
        return replace(
            self.declared,
            mean=mean,
            deviation=float(deviations(mean + centered)),
            means=tuple(means.tolist()),
            deviations=tuple(deviations(wave_values).tolist()),
        )


class TextReader(ColumnReader):
    """Reads a column of texts as bags of words."""

    def __init__(self, variable: Variable, table_name: str, unknown: str = "error", *, is_known: bool = False) -> None:
        super().__init__(variable, table_name, unknown, is_known=is_known)
        self.split = WordTokenizer(WordOptions(strip_punctuation=True)).split
        self.ids: defaultdict[str, int] = defaultdict()  # provisional ids, in order of appearance
        self.ids.default_factory = self.ids.__len__
        self.sizes: list[int] = []

    def add(self, values: list[Any], first_row: int) -> None:
        flat: list[int] = []
        for row, value in enumerate(values, first_row + 1):
            if not isinstance(value, str) and not is_missing(value):
                raise self.error(row, f"is {short_repr(value)}, not a text")
            words = self.split(value) if isinstance(value, str) else []
            flat.extend(map(self.ids.__getitem__, words))
            self.sizes.append(len(words))
        self.chunks.append(np.array(flat, dtype=np.int32))

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the frequent words and the weight of each in the mean embedding of all texts."""
        min_count = config.min_context_word
        counts = np.bincount(np.concatenate(self.chunks), minlength=len(self.ids)).tolist()
        frequent = [(-count, word) for word, count in zip(self.ids, counts, strict=True) if count >= min_count]
        if not frequent:
            problem = f"no word occurs {min_count} times (min_context_word)"
            raise UserError(f"{self.table_name}: {self.column}: {problem}; omit the column or lower min_context_word")
        words = tuple(word for _, word in sorted(frequent)[: config.max_context_words])
        bags = self._bags(words)
        sizes = np.diff(bags.offsets)
        # The embedding of a text is the sum of the embeddings of its words, divided by the square root of their number.
        weights = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes) / (sizes > 0).sum()
        shares = np.bincount(bags.values, weights, minlength=len(words))
        return replace(self.declared, values=words, shares=tuple(shares.tolist()))

    def encode(self, variable: Variable) -> Ragged:
        """Return a list per row: the index in `variable` of each of its words that `variable` contains."""
        return self._bags(variable.values)

    def _bags(self, words: Sequence[str]) -> Ragged:
        """Return a list per row: the index in `words` of each of its words that `words` contains."""
        indices = {word: index for index, word in enumerate(words)}
        final = np.array([indices.get(word, -1) for word in self.ids], dtype=np.int32)[np.concatenate(self.chunks)]
        rows = np.repeat(np.arange(len(self.sizes)), self.sizes)[final >= 0]
        sizes = np.bincount(rows, minlength=len(self.sizes))
        return Ragged(final[final >= 0], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


class VectorReader(ColumnReader):
    """Reads a column of vectors of equal size: that of training, or that of the first vector of a training table."""

    def add(self, values: list[Any], first_row: int) -> None:
        size = self.chunks[0].shape[1] if self.chunks else len(self.declared.means)
        vectors = []
        for row, value in enumerate(values, first_row + 1):
            missing = is_missing(value)
            vector = None if missing else to_vector(value)
            if vector is None and not (missing and self.unknown == "expected"):
                problem = "not a list of numbers"
                description = EMPTY.format(problem) if missing else f"{short_repr(value)}, {problem}"
                raise self.error(row, f"is {description}")
            if vector is not None:
                size = size or len(vector)
                if len(vector) != size:
                    reference = "as in training" if self.is_known else "as in the first row"
                    raise self.error(row, f"has {len(vector)} numbers; expected {size}, {reference}")
            vectors.append(vector)
        no_vector = np.full(size, math.nan, dtype=np.float32)
        self.chunks.append(np.stack([no_vector if vector is None else vector for vector in vectors]))

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the mean and standard deviation of each number of the vectors."""
        vectors = np.concatenate(self.chunks)
        means, spread = vectors.mean(0, dtype=np.float64), deviations(vectors)
        return replace(self.declared, means=tuple(means.tolist()), deviations=tuple(spread.tolist()))


def to_vector(value: Any) -> NDArray[np.float32] | None:
    """Return a list of numbers, or the JSON array in a text, as 32-bit numbers.

    None is returned for an empty list, a number that is too large for 32 bits, and a value that is not a list.
    """
    try:
        array = np.asarray(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # not JSON, or nested lists of different lengths
        return None
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iuf":
        return None
    wide = array.astype(np.float64)
    return wide.astype(np.float32) if (np.abs(wide) <= MAX_FLOAT32).all() else None

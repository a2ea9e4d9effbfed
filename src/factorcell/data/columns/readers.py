"""Readers of context columns: each reader receives one column in chunks and encodes its values as an array.

A text is encoded as a bag of words: the ids of its lower-cased words, without words that are too rare in training. The
bag does not depend on the tokenizer of the model. A vector is a list of numbers: an Arrow list, a NumPy array, or a
JSON array in text. Missing values are encoded as missing (numbers and vectors as NaN), and the model replaces them by
the expected value of the variable (docs/glossary.md).
"""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import DataConfig
from factorcell.data.columns.schema import MISSING, UNKNOWN_VALUE, Variable, bloom_filter, may_contain
from factorcell.data.columns.values import (
    MAX_FLOAT32,
    category_name,
    category_name_or_none,
    is_missing,
    short_repr,
)
from factorcell.data.ragged import Ragged
from factorcell.data.tokenizers.tokenizer import WordTokenizer, without_punctuation
from factorcell.errors import UserError, nearest_hint, similar_names
from factorcell.options.option_fields import WordOptions

MAX_CONTEXT_WORDS = 10_000  # maximum number of words of a column of texts, the most frequent ones


class ColumnReader:
    """Base of the readers of a context column.

    In training, `build_variable` determines the variable from the values of the column. The schema of a trained model
    already contains the variable.
    """

    def __init__(self, variable: Variable, table_name: str, unknown: str = "error", *, is_known: bool = False) -> None:
        """Prepare to read a column.

        Args:
            variable: The variable of a schema, or a new one of which only name, kind, column and period are set.
            table_name: The name of the table, for messages.
            unknown: The policy for category values that training never saw: "error", "group" (read as a rare value) or
                "expected" (read as a missing value).
            is_known: Whether `variable` comes from the schema of a trained model.
        """
        self.declared_variable, self.column, self.table_name = variable, variable.source_column, table_name
        self.unknown, self.is_known = unknown, is_known
        self.chunk_arrays = list[NDArray[Any]]()  # the numbers, vectors or provisional ids of each chunk

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        """Add the values of one chunk; `rows` are the numbers of their rows in the table, counted from 1."""
        raise NotImplementedError

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable that training determines from the values of all rows."""
        raise NotImplementedError

    def encode(self, variable: Variable) -> Any:
        """Return the values of all rows; categories and words become indices of `variable.values`."""
        return np.concatenate(self.chunk_arrays)

    def no_values_error(self) -> UserError:
        """Return the error about a training table in which all values of the column are missing."""
        return UserError(f"{self.table_name}: {self.column} is empty in all rows; leave the column out")

    def error(self, row: int, problem: str) -> UserError:
        """Return the error about the value in row number `row`, counted from 1."""
        return UserError(f"{self.table_name} row {row}: {self.column} {problem}")


def deviations(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the standard deviations of the columns of `values` (rows, n); 1 for a column of equal values.

    One column may also have the shape (rows,).
    """
    result: NDArray[np.float64] = values.std(0, dtype=np.float64)
    # Rounding errors can give equal values a small deviation.
    return np.where(result > 1e-12 * np.abs(values).max(0), result, 1.0)


class _ValueIds(dict[Any, int]):
    """Provisional ids of the values of one Python type: one id per category name, and 0 for missing values."""

    def __init__(self, ids_by_name: dict[str, int]) -> None:
        super().__init__()
        self.ids_by_name = ids_by_name

    def __missing__(self, value: Any) -> int:
        if is_missing(value):
            return 0
        self[value] = provisional_id = self.ids_by_name.setdefault(category_name(value), len(self.ids_by_name) + 1)
        return provisional_id


class CategoryReader(ColumnReader):
    """Reads a column of categories.

    Attributes:
        is_private: Whether error messages must not name values, because they are users.
    """

    is_private = False

    def __init__(self, variable: Variable, table_name: str, unknown: str = "error", *, is_known: bool = False) -> None:
        super().__init__(variable, table_name, unknown, is_known=is_known)
        self.ids_by_name = dict[str, int]()  # provisional ids from 1 on, in order of appearance
        # Each type of values has its own dict, because True, 1 and 1.0 are the same key in Python.
        self.ids_by_type: defaultdict[type, _ValueIds] = defaultdict(lambda: _ValueIds(self.ids_by_name))

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        try:
            ids = (self.ids_by_type[type(value)][value] for value in values)
            self.chunk_arrays.append(np.fromiter(ids, dtype=np.int32, count=len(values)))
        except (TypeError, UserError):
            raise self._invalid_value_error(values, rows) from None

    def _invalid_value_error(self, values: list[Any], rows: Sequence[int]) -> UserError:
        """Return the error about the first value that cannot be a category."""
        for row, value in zip(rows, values, strict=True):
            try:
                hash(value)
                category_name_or_none(value)
            except UserError as error:
                return UserError(f"{self.table_name} row {row}: {self.column}: {error.message}")
            except TypeError:
                is_list = isinstance(value, (list, tuple, np.ndarray))
                hint = f" (for vectors, use {self.column}:vector)" if is_list else ""
                return self.error(row, f"is a {type(value).__name__}, not the name of a category{hint}")
        raise AssertionError("every value has a category name")

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the frequent values in order of decreasing count; rare values are grouped."""
        min_count = config.min_user_count if self.column == config.user else config.min_context_count
        counts = np.bincount(self.provisional_ids(), minlength=len(self.ids_by_name) + 1)
        count_by_name = dict(zip(self.ids_by_name, counts[1:].tolist(), strict=True))  # without missing values
        names = sorted(count_by_name, key=lambda name: (-count_by_name[name], name))
        frequent_names = [name for name in names if count_by_name[name] >= min_count and name != UNKNOWN_VALUE]
        rare_names = set(names).difference(frequent_names)
        return replace(
            self.declared_variable,
            values=(UNKNOWN_VALUE, *frequent_names),
            counts=(sum(count_by_name[name] for name in rare_names), *(count_by_name[name] for name in frequent_names)),
            rare_count=len(rare_names),
            min_count=min_count,
            rare_filter=bloom_filter(rare_names),
        )

    def provisional_ids(self) -> NDArray[np.int32]:
        """Return the provisional id of each row's value, from 1 on in order of appearance; 0 for a missing value."""
        return np.concatenate(self.chunk_arrays)

    def encode(self, variable: Variable) -> NDArray[np.int32]:
        """Return the index of each row's value in `variable.values`; -1 for a missing value.

        The index of rare and unseen values is 0, or -1 with the policy "expected".

        Raises:
            UserError: The policy is "error", and training never saw one of the values.
        """
        ids = self.provisional_ids()
        if self.is_known and self.unknown == "error" and (unseen_names := self._unseen_names(variable)):
            raise self._unseen_value_error(unseen_names, ids, variable)
        other_index = MISSING if self.unknown == "expected" else 0
        # The index in `variable.values` of each provisional id; the provisional id 0 is a missing value.
        final_indices = [MISSING, *(variable.index_by_value.get(name, other_index) for name in self.ids_by_name)]
        return np.array(final_indices, dtype=np.int32)[ids]

    def is_unseen(self, variable: Variable) -> NDArray[np.bool_]:
        """Return whether training never saw the value of each row (rows,)."""
        return np.isin(self.provisional_ids(), [self.ids_by_name[name] for name in self._unseen_names(variable)])

    def _unseen_names(self, variable: Variable) -> list[str]:
        """Return the values of the column that training never saw, in order of appearance."""
        rare_filter = bytes.fromhex(variable.rare_filter)
        return [
            name
            for name in self.ids_by_name
            if not variable.index_by_value.get(name) and not may_contain(rare_filter, name)
        ]

    def _unseen_value_error(self, unseen_names: list[str], ids: NDArray[np.int32], variable: Variable) -> UserError:
        """Return the error about values that training never saw; it names the first of these values and its row."""
        unseen_ids = [self.ids_by_name[name] for name in unseen_names]
        first_row = int(np.argmax(ids == unseen_ids[0])) + 1
        row_count = int(np.isin(ids, unseen_ids).sum())
        affected = f"{len(unseen_names):,} such values" if len(unseen_names) > 1 else "this value"
        extent = f" ({affected} in {row_count:,} of {len(ids):,} rows)" if row_count > 1 else ""
        or_rare = " or is rare" if variable.rare_count and not variable.rare_filter else ""
        values = variable.values[1:]
        name = "of this row" if self.is_private else repr(unseen_names[0])
        hint = "" if self.is_private else nearest_hint(unseen_names[0], values)
        problem = f"{name} was never seen in training{or_rare}{extent}{hint}; training has {len(values):,} values"
        if values and not self.is_private:
            examples = similar_names(unseen_names[0], values, 3) or values[:5]
            problem += f" ({', '.join(examples)}{', ...' if len(values) > len(examples) else ''})"
        error = self.error(first_row, problem)
        return UserError(error.message, (("unknown", "group"), ("unknown", "expected")))


class TextReader(ColumnReader):
    """Reads a column of texts as lists of words."""

    def __init__(self, variable: Variable, table_name: str, unknown: str = "error", *, is_known: bool = False) -> None:
        super().__init__(variable, table_name, unknown, is_known=is_known)
        self.split = WordTokenizer(WordOptions()).split
        self.ids: defaultdict[str, int] = defaultdict()  # provisional ids of words, in order of appearance
        self.ids.default_factory = self.ids.__len__
        self.sizes: list[int] = []  # the number of words of each row

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        word_ids: list[int] = []
        for row, value in zip(rows, values, strict=True):
            if not isinstance(value, str) and not is_missing(value):
                raise self.error(row, f"is {short_repr(value)}, not a text")
            words = without_punctuation(self.split(value)) if isinstance(value, str) else []
            word_ids.extend(map(self.ids.__getitem__, words))
            self.sizes.append(len(words))
        self.chunk_arrays.append(np.array(word_ids, dtype=np.int32))

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with its frequent words and their weights in the mean embedding of all texts."""
        min_count = config.min_word_count
        counts = np.bincount(np.concatenate(self.chunk_arrays), minlength=len(self.ids)).tolist()
        count_by_word = dict(zip(self.ids, counts, strict=True))
        frequent_words = [word for word in self.ids if count_by_word[word] >= min_count]
        if not frequent_words:
            problem = f"no word occurs {min_count} times (min_context_count)"
            raise UserError(f"{self.table_name}: {self.column}: {problem}; omit the column or lower min_context_count")
        frequent_words.sort(key=lambda word: (-count_by_word[word], word))
        words = tuple(frequent_words[:MAX_CONTEXT_WORDS])
        bags = self._encode_bags(words)
        sizes = np.diff(bags.offsets)
        text_count = (sizes > 0).sum()
        # The embedding of a text is the sum of the embeddings of its words, divided by the square root of their number.
        weights = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes) / text_count
        shares = np.bincount(bags.values, weights, minlength=len(words))
        return replace(self.declared_variable, values=words, shares=tuple(shares.tolist()))

    def encode(self, variable: Variable) -> Ragged:
        """Return the bag of each row: the indices in `variable.values` of the words that `variable.values` contains.

        Raises:
            UserError: The policy is "error", and a row has words, but training never saw any of them.
        """
        if self.is_known and self.unknown == "error" and (is_unseen := self.is_unseen(variable)).any():
            row = int(np.argmax(is_unseen)) + 1
            extent = f" (in {is_unseen.sum():,} of {len(is_unseen):,} rows)" if is_unseen.sum() > 1 else ""
            hint = nearest_hint(self._first_word(is_unseen), variable.values)
            error = self.error(row, f"has only words that training did not see{extent}{hint}")
            raise UserError(error.message, (("unknown", "group"), ("unknown", "expected")))
        return self._encode_bags(variable.values)

    def is_unseen(self, variable: Variable) -> NDArray[np.bool_]:
        """Return whether each row has words, but none that training saw (rows,)."""
        known_counts = np.diff(self._encode_bags(variable.values).offsets)
        is_unseen: NDArray[np.bool_] = (np.array(self.sizes) > 0) & (known_counts == 0)
        return is_unseen

    def _first_word(self, is_chosen: NDArray[np.bool_]) -> str:
        """Return the first word of the first chosen row."""
        first_index = sum(self.sizes[: int(np.argmax(is_chosen))])
        return [*self.ids][int(np.concatenate(self.chunk_arrays)[first_index])]

    def _encode_bags(self, words: Sequence[str]) -> Ragged:
        """Return the bag of each row: the indices in `words` of those words of the row that `words` contains."""
        index_by_word = {word: index for index, word in enumerate(words)}
        final_indices = np.array([index_by_word.get(word, -1) for word in self.ids], dtype=np.int32)
        indices = final_indices[np.concatenate(self.chunk_arrays)]
        is_contained = indices >= 0
        rows = np.repeat(np.arange(len(self.sizes)), self.sizes)[is_contained]
        sizes = np.bincount(rows, minlength=len(self.sizes))
        return Ragged(indices[is_contained], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


class VectorReader(ColumnReader):
    """Reads a column of vectors of equal size; in training, the first vector determines the size."""

    def __init__(self, variable: Variable, table_name: str, unknown: str = "error", *, is_known: bool = False) -> None:
        super().__init__(variable, table_name, unknown, is_known=is_known)
        self.size = len(variable.means)
        self.leading_count = 0  # the number of missing vectors before the first vector of a training table

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        vectors: list[NDArray[np.float32] | None] = [None] * self.leading_count
        for row, value in zip(rows, values, strict=True):
            vector = None if is_missing(value) else to_vector(value)
            if vector is None and not is_missing(value):
                raise self.error(row, f"is {short_repr(value)}, not a list of numbers")
            if vector is not None:
                self.size = self.size or len(vector)
                if len(vector) != self.size:
                    reference = "as in training" if self.is_known else "as in the first vector"
                    raise self.error(row, f"has {len(vector)} numbers; expected {self.size}, {reference}")
            vectors.append(vector)
        self.leading_count = 0 if self.size else len(vectors)
        if self.size:
            missing_vector = np.full(self.size, math.nan, dtype=np.float32)
            chunk = [missing_vector if vector is None else vector for vector in vectors]
            self.chunk_arrays.append(np.array(chunk, np.float32).reshape(-1, self.size))

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the mean and standard deviation of each number of the vectors."""
        if not self.size:
            raise self.no_values_error()
        vectors = np.concatenate(self.chunk_arrays)
        vectors = vectors[~np.isnan(vectors[:, 0])]
        means, spreads = vectors.mean(0, dtype=np.float64).tolist(), deviations(vectors).tolist()
        return replace(self.declared_variable, means=tuple(means), deviations=tuple(spreads))


def to_vector(value: Any) -> NDArray[np.float32] | None:
    """Convert a list of numbers, or the JSON array in a text, to an array of 32-bit floats.

    The result is None for an empty list, for a list with a number that is too large for 32 bits, and for other values.
    """
    try:
        array = np.asarray(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # not JSON, or nested lists of different lengths
        return None
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iuf":
        return None
    numbers = array.astype(np.float64)
    return numbers.astype(np.float32) if (np.abs(numbers) <= MAX_FLOAT32).all() else None

"""Readers of context columns: each reader receives one column in chunks and encodes its values as an array.

A text is encoded as a bag of words: the ids of its lower-cased words, without words that are too rare in training. The
bag does not depend on the tokenizer of the model. A vector is a list of numbers: an Arrow list, a NumPy array, or a
JSON array in text. Missing values are encoded as missing (numbers and vectors as NaN), and the model replaces them by
the expected value of the variable (docs/glossary.md).

A prompt is a text or a list of texts that a language model reads before the text, and does not predict. Its ids are
those of the texts, each after a start token s, which separates them; an empty prompt has no ids:

    s prompt 1   s prompt 2   s text

Without a column of earlier texts, the option `prompt_history` reads the earlier texts of the same user in the table.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import HISTORY_COLUMN, DataConfig, WordOptions
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.declarations import count_values, describe_notations, read_notations
from factorcell.data.columns.schema import MISSING, UNKNOWN_VALUE, Variable, wave_parameters
from factorcell.data.columns.values import MAX_FLOAT32, category_name, cell_number, is_missing, short_repr
from factorcell.data.tables.chunks import Table
from factorcell.data.tokenizers.tokenizer import Specials, Tokenizer, WordTokenizer, without_punctuation
from factorcell.errors import UserError, nearest_hint, similar_names
from factorcell.io.arrays import GrowingArray, blocks, count_ids, mapped, take, to_offsets
from factorcell.io.findings import Finding, report

START = 0  # provisional id of the start token in prompts
MAX_MIN_WORD_COUNT = 5  # words that occur as often in a column of kind text are always read
BLOCK_PROMPTS = 1 << 14  # prompts that are converted to ids at once
MAX_CONTEXT_WORDS = 10_000  # maximum number of words of a column of texts, the most frequent ones
# The end of the message about a value that the parser of a kind cannot read.
PROBLEMS = {
    "longitude": "not a number of degrees",
    "hour": "not a time of day (ISO 8601, such as 2026-11-21T15:55)",
    **dict.fromkeys(("weekday", "yearday"), "not a date (ISO 8601, such as 2026-11-21T15:55)"),
}


@dataclass(eq=False)
class ColumnReader:
    """Base of the readers of a context column.

    In training, `build_variable` determines the variable from the values of the column. The schema of a trained model
    already contains the variable.

    Attributes:
        declared_variable: The variable of a schema, or a new one of which only name, kind, column and period are set.
        table: The table, for messages.
        unknown: The policy for category values that training never saw: "error", "group" (read as a rare value) or
            "expected" (read as a missing value); None in training.
        values: The numbers, vectors or provisional ids of all rows.
    """

    declared_variable: Variable
    table: Table
    unknown: str | None = None
    values: GrowingArray = field(default_factory=GrowingArray, init=False)

    @property
    def column(self) -> str:
        return self.declared_variable.source_column

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        """Add the values of one chunk; `rows` are the numbers of their rows in the table, counted from 1."""
        raise NotImplementedError

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable that training determines from all values."""
        raise NotImplementedError

    def encode(self, variable: Variable) -> Any:
        """Return the values of all rows; categories and words become indices of `variable.values`."""
        return self.values.array()

    def no_values_error(self) -> UserError:
        return UserError(f"{self.table.name}: {self.column} is empty in all rows; leave the column out")

    def error(self, row: int, problem: str) -> UserError:
        """Return the error about the value in row number `row`, counted from 1."""
        return UserError(f"{self.table.place(row)}: {self.column} {problem}")


def deviations(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the standard deviations of the columns of `values` (rows, n); 1 for a column of equal values.

    One column may also have the shape (rows,).
    """
    mean = values.mean(0, dtype=np.float64)
    result: NDArray[np.float64] = np.sqrt(mapped(lambda block: np.square(block - mean), values).mean(0))
    # Rounding errors can give equal values a small deviation.
    return np.where(result > 1e-12 * np.maximum(values.max(0), -values.min(0)), result, 1.0)


@dataclass(eq=False)
class NumberReader(ColumnReader):
    """Reads a column of numbers or times; periodic numbers are reduced modulo their period."""

    has_reported: bool = field(default=False, init=False)  # whether a finding has named a number outside its period

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        kind, notation = self.declared_variable.kind, self.declared_variable.notation
        numbers = [cell_number(kind, value, notation) for value in values]
        for row, value, number in zip(rows, values, numbers, strict=True):
            if number is None and not is_missing(value):
                problem = f"not a {kind} ({notation})" if notation else PROBLEMS.get(kind, "not a number")
                raise self.error(row, f"is {short_repr(value)}, {problem}{self._remedy(value, values)}")
        array = np.array([math.nan if number is None else number for number in numbers])
        if not (period := self.declared_variable.period):
            self.values.append(array)
            return
        is_outside = (array < -period / 2) | (array > period)
        if is_outside.any() and not self.has_reported:
            self.has_reported, first = True, int(is_outside.argmax())
            value = f"{self.table.name} row {rows[first]}: {self.column} is {array[first]:.8g}"
            text = f"{value}, outside {-period / 2:g} to {period:g}; such numbers are read modulo {period:g}"
            report(Finding("outside range", text))
        self.values.append(array % period)

    def _remedy(self, value: Any, values: list[Any]) -> str:
        """Return in training how to declare a column of `values`, of which `value` cannot be read."""
        kind, notation = self.declared_variable.kind, self.declared_variable.notation
        if self.unknown is not None or notation:
            return ""
        period = f"={self.declared_variable.period:g}" if kind == "cyclic" else ""
        for sample in (values, [value]):
            try:
                counts = count_values(sample)
            except TypeError:  # lists
                continue
            if readings := {name: numbers for name, numbers in read_notations(kind, counts).items() if name}:
                return f"; set {describe_notations(f'{self.column}:{kind}{period}', kind, counts, readings)}"
        return f" (for a category, use {self.column}:category)" if kind == "number" else ""

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the mean, standard deviation and range of its numbers.

        A periodic number has no range, but the means and standard deviations of its waves (`wave_parameters`). Its
        values are points on the unit circle, and its mean is the angle of the mean of these points.
        """
        period = self.declared_variable.period
        numbers = mapped(lambda block: block[~np.isnan(block)], self.values.array())
        if not len(numbers):
            raise self.no_values_error()
        if not period:
            return replace(
                self.declared_variable,
                mean=float(numbers.mean()),
                deviation=float(deviations(numbers)),
                low=float(numbers.min()),
                high=float(numbers.max()),
            )
        frequencies, phases = map(np.array, wave_parameters(period))
        # Rounded: the sine of a multiple of pi, such as of half a period, is not 0 in floating point.
        wave_values = mapped(lambda block: np.sin(block[:, None] * frequencies + phases).round(9), numbers)
        means = wave_values.mean(0)
        sine_mean, cosine_mean = means[:2]  # of the first two waves, whose period is `period`
        mean = math.atan2(sine_mean, cosine_mean) * period / (2 * math.pi) % period
        # The signed distance of each number from the mean on the circle, from -period / 2 to period / 2.
        near_mean = mapped(lambda block: mean + ((block - mean + period / 2) % period - period / 2), numbers)
        return replace(
            self.declared_variable,
            mean=mean,
            deviation=float(deviations(near_mean)),
            means=tuple(means.tolist()),
            deviations=tuple(deviations(wave_values).tolist()),
        )


@dataclass(eq=False)
class CategoryReader(ColumnReader):
    """Reads a column of categories.

    Attributes:
        is_private: Whether error messages must not name values, because they are users.
        ids_by_name: Provisional ids of the values, from 1 on, in order of appearance; 0 is a missing value.
    """

    is_private: bool = field(default=False, init=False)
    ids_by_name: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # The type is a part of the key, because True, 1 and 1.0 are the same key in Python.
        self.id_by_value = dict[tuple[type, Any], int]()

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        ids = list[int]()
        for row, value in zip(rows, values, strict=True):
            try:
                value_id = self.id_by_value.get((type(value), value))
                ids.append(self._new_id(value) if value_id is None else value_id)
            except UserError as error:
                raise UserError(f"{self.table.place(row)}: {self.column}: {error.message}") from None
            except TypeError:
                hint = f" (use {self.column}:{kind})" if (kind := _kind_of_list(value)) else ""
                raise self.error(row, f"is a {type(value).__name__}, not the name of a category{hint}") from None
        self.values.append(np.array(ids, dtype=np.int32))

    def _new_id(self, value: Any) -> int:
        if is_missing(value):
            return 0
        value_id = self.ids_by_name.setdefault(category_name(value), len(self.ids_by_name) + 1)
        self.id_by_value[type(value), value] = value_id
        return value_id

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the frequent values in order of decreasing count; rare values are grouped."""
        counts = count_ids(self.values.array(), len(self.ids_by_name) + 1)
        min_count = config.min_user_count if self.column == config.user else config.min_value_count(int(counts.sum()))
        count_by_name = dict(zip(self.ids_by_name, counts[1:].tolist(), strict=True))  # without missing values
        unknown_count = count_by_name.pop(UNKNOWN_VALUE, 0)  # read as the unknown value, as rare values are
        names = sorted(count_by_name, key=lambda name: (-count_by_name[name], name))
        frequent_names = [name for name in names if count_by_name[name] >= min_count]
        frequent_counts = [count_by_name[name] for name in frequent_names]
        return replace(
            self.declared_variable,
            values=(UNKNOWN_VALUE, *frequent_names),
            counts=(int(counts[1:].sum()) - sum(frequent_counts), *frequent_counts),
            rare_count=len(names) - len(frequent_names),
            min_count=min_count,
            unknown_count=unknown_count,
        )

    def encode(self, variable: Variable) -> NDArray[np.int32]:
        """Return the index of each row's value in `variable.values`; -1 for a missing value.

        The index of rare and unseen values is 0, or -1 with the policy "expected".

        Raises:
            UserError: The policy is "error", and one of the values is not a frequent value of training.
        """
        ids = self.values.array()
        if self.unknown == "error":
            self._check_values(ids, variable)
        other_index = MISSING if self.unknown == "expected" else 0
        # The index in `variable.values` of each provisional id; the provisional id 0 is a missing value.
        final_indices = [MISSING, *(variable.index_by_value.get(name, other_index) for name in self.ids_by_name)]
        return take(np.array(final_indices, dtype=np.int32), ids)

    def _check_values(self, ids: NDArray[np.int32], variable: Variable) -> None:
        """Raise `UserError` about values that training did not see or that were rare; it names the first one."""
        unseen_names = [name for name in self.ids_by_name if not variable.index_by_value.get(name)]
        if not unseen_names:
            return
        first, values = unseen_names[0], variable.values[1:]
        is_unseen = np.isin(ids, [self.ids_by_name[name] for name in unseen_names])
        reason = "was never seen in training" + (" or is a rare value" if variable.rare_count else "")
        others = f" (such values in {is_unseen.sum():,} of {len(ids):,} rows)" if is_unseen.sum() > 1 else ""
        name, hint, examples = "of this row", "", ""  # users are not named
        if not self.is_private:
            name, hint = repr(first), nearest_hint(first, values)
            similar = similar_names(first, values, 3) or values[:5]
            examples = f" ({', '.join(similar)}{', ...' if len(values) > len(similar) else ''})" if values else ""
        problem = f"{name} {reason}{others}{hint}; the run has {len(values):,} values{examples}"
        error = self.error(int(is_unseen.argmax()) + 1, problem)
        raise UserError(error.message, (("unknown", "group"), ("unknown", "expected")))


@dataclass(eq=False)
class TextReader(ColumnReader):
    """Reads a column of texts as lists of words."""

    sizes: GrowingArray = field(default_factory=GrowingArray, init=False)  # the number of words of each row

    def __post_init__(self) -> None:
        self.split = WordTokenizer(WordOptions()).split
        self.ids: defaultdict[str, int] = defaultdict()  # provisional ids of words, in order of appearance
        self.ids.default_factory = self.ids.__len__

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        word_ids, sizes = list[int](), list[int]()
        for row, value in zip(rows, values, strict=True):
            text = " ".join(value) if _kind_of_list(value) == "text" else value
            if not isinstance(text, str) and not is_missing(text):
                raise self.error(row, f"is {short_repr(value)}, not a text or a list of texts")
            words = without_punctuation(self.split(text)) if isinstance(text, str) else []
            word_ids.extend(map(self.ids.__getitem__, words))
            sizes.append(len(words))
        self.values.append(np.array(word_ids, dtype=np.int32))
        self.sizes.append(np.array(sizes, np.int64))

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with its frequent words and their weights in the mean embedding of all texts."""
        min_count = min(MAX_MIN_WORD_COUNT, config.min_context_count or MAX_MIN_WORD_COUNT)
        counts = count_ids(self.values.array(), len(self.ids)).tolist()
        count_by_word = dict(zip(self.ids, counts, strict=True))
        frequent_words = [word for word in self.ids if count_by_word[word] >= min_count]
        if not frequent_words:
            problem = f"no word occurs {min_count} times (min_context_count)"
            raise UserError(f"{self.table.name}: {self.column}: {problem}; omit the column or lower min_context_count")
        frequent_words.sort(key=lambda word: (-count_by_word[word], word))
        variable = replace(self.declared_variable, values=tuple(frequent_words[:MAX_CONTEXT_WORDS]))
        bags = self.encode(variable)
        text_count = mapped(np.not_equal, bags.offsets[1:], bags.offsets[:-1]).sum()
        # The embedding of a text is the sum of the embeddings of its words, divided by the square root of their number.
        shares = np.zeros(len(variable.values))
        for rows in blocks(len(bags.offsets) - 1):
            sizes = np.diff(bags.offsets[rows.start : rows.stop + 1])
            words = bags.values[bags.offsets[rows.start] : bags.offsets[rows.stop]]
            np.add.at(shares, words, np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes) / text_count)
        return replace(variable, shares=tuple(shares.tolist()))

    def encode(self, variable: Variable) -> Ragged:
        """Return the bag of each row: the indices in `variable.values` of the words that `variable.values` contains.

        Raises:
            UserError: The policy is "error", and a row has words, but training never saw any of them.
        """
        index_by_word = {word: index for index, word in enumerate(variable.values)}
        final_indices = np.array([index_by_word.get(word, -1) for word in self.ids], dtype=np.int32)
        words, word_counts = self.values.array(), self.sizes.array()
        offsets, indices, sizes = to_offsets(word_counts), GrowingArray(), GrowingArray()
        for block in blocks(len(word_counts)):
            block_indices = final_indices[words[offsets[block.start] : offsets[block.stop]]]
            is_contained, counts = block_indices >= 0, word_counts[block]
            rows = np.repeat(np.arange(len(counts)), counts)[is_contained]
            indices.append(block_indices[is_contained])
            sizes.append(np.bincount(rows, minlength=len(counts)))
        if self.unknown == "error" and (is_unseen := (word_counts > 0) & (sizes.array() == 0)).any():
            error = self.error(int(is_unseen.argmax()) + 1, "has only words that training did not see")
            raise UserError(error.message, (("unknown", "group"), ("unknown", "expected")))
        return Ragged(indices.array(), to_offsets(sizes.array()))


@dataclass(eq=False)
class VectorReader(ColumnReader):
    """Reads a column of vectors of equal size; in training, the first vector determines the size."""

    def __post_init__(self) -> None:
        self.size, self.leading_rows = len(self.declared_variable.means), 0  # rows before the size was known

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        vectors = list[NDArray[np.float32] | None]()
        for row, value in zip(rows, values, strict=True):
            vector = None if is_missing(value) else to_vector(value)
            if vector is None and not is_missing(value):
                raise self.error(row, f"is {short_repr(value)}, not a list of numbers")
            if vector is not None:
                self.size = self.size or len(vector)
                if len(vector) != self.size:
                    reference = "as in the first vector" if self.unknown is None else "as in training"
                    raise self.error(row, f"has {len(vector)} numbers; expected {self.size}, {reference}")
            vectors.append(vector)
        if not self.size:
            self.leading_rows += len(vectors)
            return
        missing = np.full(self.size, math.nan, np.float32)
        vectors = [*[None] * self.leading_rows, *vectors]
        self.leading_rows = 0
        self.values.append(np.array([missing if vector is None else vector for vector in vectors], np.float32))

    def build_variable(self, config: DataConfig) -> Variable:
        """Return the variable with the mean and standard deviation of each number of the vectors."""
        if not self.size:
            raise self.no_values_error()
        vectors = mapped(lambda block: block[~np.isnan(block[:, 0])], self.values.array())
        means, spreads = vectors.mean(0, dtype=np.float64).tolist(), deviations(vectors).tolist()
        return replace(self.declared_variable, means=tuple(means), deviations=tuple(spreads))


def _kind_of_list(value: Any) -> str:
    """Return the kind of a column of such lists: text for lists of texts, vector for other lists; empty for no list."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        return ""
    return "text" if all(isinstance(item, str) for item in value) else "vector"


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


@dataclass(eq=False)
class PromptReader(ColumnReader):
    """Reads a column of prompts as token ids; of a long prompt, only the last tokens."""

    sizes: GrowingArray = field(default_factory=GrowingArray, init=False)  # the number of ids of each row

    def read_with(self, tokenizer: Tokenizer, config: DataConfig) -> None:
        """Set the tokenizer that splits texts, and the limits of the prompts."""
        self.tokenizer, self.config = tokenizer, config
        self.ids: defaultdict[str, int] = defaultdict(lambda: len(self.ids) + START + 1)  # provisional ids of tokens

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        chunk_ids, sizes = list[int](), list[int]()
        for row, value in zip(rows, values, strict=True):
            segments = [[self.ids[token] for token in tokens] for tokens in self._split(value, row)]
            ids = join_segments(segments, self.config.max_prompt_tokens, START)
            chunk_ids.extend(ids)
            sizes.append(len(ids))
        self.values.append(np.array(chunk_ids, dtype=np.int32))
        self.sizes.append(np.array(sizes, np.int64))

    def _split(self, value: Any, row: int) -> list[list[str]]:
        """Return the tokens of each text of a prompt."""
        texts = value
        if not isinstance(value, (list, tuple, np.ndarray)):
            texts = [] if is_missing(value) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise self.error(row, f"is {short_repr(value)}, not a text or a list of texts")
        if self.column != HISTORY_COLUMN:
            return [self.tokenizer.split(text) for text in texts]
        # Earlier texts of the user are cut as `max_tokens` cuts the texts of a table.
        last_texts = texts[-self.config.prompt_history :]
        return [self.tokenizer.split(text)[: self.config.max_tokens] for text in last_texts]

    def build_variable(self, config: DataConfig) -> Variable:
        return self.declared_variable

    def ids_of_rows(self, tokenizer: Tokenizer) -> Ragged:
        """Return the ids of each row in the vocabulary of `tokenizer`, which may cut a word of training into pieces."""
        start, max_tokens = tokenizer.specials.start, self.config.max_prompt_tokens
        ids_of_tokens: list[Sequence[int]] = [(start,)]
        if tokenizer is self.tokenizer:
            ids_of_tokens += [(token_id,) for token_id in tokenizer.encode(self.ids)]
        else:
            ids_of_tokens += tokenizer.encode_words(self.ids)
        values, offsets = self.values.array(), to_offsets(self.sizes.array())

        def read_block(rows: slice) -> Ragged:
            lists = (
                values[begin:end].tolist() for begin, end in pairwise(offsets[rows.start : rows.stop + 1].tolist())
            )
            prompts = (chain.from_iterable(map(ids_of_tokens.__getitem__, tokens)) for tokens in lists)
            return Ragged.of([_retain_last([*prompt], max_tokens, start) for prompt in prompts], np.int32)

        return Ragged.join(read_block(rows) for rows in blocks(len(self.sizes), BLOCK_PROMPTS))


def join_segments(segments: Iterable[Sequence[int]], max_tokens: int, start: int) -> list[int]:
    """Return the last `max_tokens` ids of `segments`, each after the id `start`; the result begins with `start`.

    Empty segments are omitted, and without other segments the result is empty. It has one id more than `max_tokens` if
    the last ids do not begin with `start`.
    """
    ids = [*chain.from_iterable((start, *segment) for segment in segments if len(segment))]
    return _retain_last(ids, max_tokens, start)


def _retain_last(ids: list[int], max_tokens: int, start: int) -> list[int]:
    """Return the last `max_tokens` ids, after the id `start` unless they begin with it."""
    last_ids = ids[-max_tokens:]
    return last_ids if not last_ids or last_ids[0] == start else [start, *last_ids]


def earlier_texts(
    texts: Ragged, users: NDArray[np.int32], times: NDArray[np.float64], config: DataConfig, specials: Specials
) -> Ragged:
    """Return for each text the prompt of the `prompt_history` texts that its user wrote before it.

    `texts` are the ids of all texts, each from its start token to its end token, which a cut text lacks. The texts of
    a missing user, 0, have no earlier texts. Equal times are in the order of the rows.
    """
    # The rows of each user in order of time, one user after the other, and the place of each row among them
    order, user_offsets = np.lexsort((times, users)), to_offsets(count_ids(users, 1 + int(users.max(initial=0))))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))

    def read_text(row: int) -> list[int]:
        ids: list[int] = texts.values[texts.offsets[row] + 1 : texts.offsets[row + 1]].tolist()
        return ids[:-1] if ids and ids[-1] == specials.end else ids

    def read_prompt(row: int) -> list[int]:
        if not (user := int(users[row])):
            return []
        first = max(int(user_offsets[user]), int(places[row]) - config.prompt_history)
        earlier_rows = order[first : places[row]].tolist()
        return join_segments(map(read_text, earlier_rows), config.max_prompt_tokens, specials.start)

    all_blocks = blocks(len(users), BLOCK_PROMPTS)
    return Ragged.join(Ragged.of([*map(read_prompt, range(len(users))[rows])], np.int32) for rows in all_blocks)


# `NumberReader` reads the columns of all other kinds.
READERS: dict[str, type[ColumnReader]] = {
    "category": CategoryReader,
    "text": TextReader,
    "prompt": PromptReader,
    "vector": VectorReader,
}

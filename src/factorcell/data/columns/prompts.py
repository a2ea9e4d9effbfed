"""Prompts: texts that a language model reads before the text, and does not predict.

A prompt is a text or a list of texts. Its ids are those of the texts, each after a start token s, which separates them:

    s prompt 1   s prompt 2   s text

The last start token is that of the text. An empty prompt has no ids. Without a column of earlier texts, the option
`prompt_history` reads the earlier texts of the same user in the table, in order of time.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import HISTORY_COLUMN, DataConfig
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.readers import ColumnReader
from factorcell.data.columns.schema import Variable
from factorcell.data.columns.values import is_missing, short_repr
from factorcell.data.tokenizers.tokenizer import Specials, Tokenizer

START = 0  # provisional id of the start token


@dataclass(eq=False)
class PromptReader(ColumnReader):
    """Reads a column of prompts as token ids; of a long prompt, only the last tokens."""

    sizes: list[int] = field(default_factory=list, init=False)  # the number of ids of each row

    def read_with(self, tokenizer: Tokenizer, config: DataConfig) -> None:
        """Set the tokenizer that splits texts, and the limits of the prompts."""
        self.tokenizer, self.config = tokenizer, config
        self.ids: defaultdict[str, int] = defaultdict(lambda: len(self.ids) + START + 1)  # provisional ids of tokens

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        chunk_ids: list[int] = []
        for row, value in zip(rows, values, strict=True):
            segments = [[self.ids[token] for token in tokens] for tokens in self._split(value, row)]
            ids = join_segments(segments, self.config.max_prompt_tokens, START)
            chunk_ids.extend(ids)
            self.sizes.append(len(ids))
        self.chunk_arrays.append(np.array(chunk_ids, dtype=np.int32))

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
        rows = np.split(self.all_values(), np.cumsum(self.sizes)[:-1])
        prompts = [chain.from_iterable(ids_of_tokens[token] for token in row.tolist()) for row in rows]
        return Ragged.of([_retain_last([*prompt], max_tokens, start) for prompt in prompts], np.int32)


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
    ids, offsets = np.asarray(texts.values), texts.offsets.tolist()
    prompts: list[list[int]] = [[] for _ in users]
    segments_by_user: defaultdict[int, list[list[int]]] = defaultdict(list)  # the last texts of each user
    for row in np.argsort(times, kind="stable").tolist():
        if not (user := int(users[row])):
            continue
        segments = segments_by_user[user]
        prompts[row] = join_segments(segments, config.max_prompt_tokens, specials.start)
        segment = ids[offsets[row] + 1 : offsets[row + 1]].tolist()
        segments.append(segment[:-1] if segment and segment[-1] == specials.end else segment)
        del segments[: -config.prompt_history]
    return Ragged.of(prompts, np.int32)

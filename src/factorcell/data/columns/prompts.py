"""Prompts: texts that a language model reads before the text, and does not predict.

A prompt is a text or a list of texts. Its ids are those of the texts, each after a start token s, which separates them:

    s prompt 1   s prompt 2   s text

The last start token is that of the text. An empty prompt has no ids. Without a column of earlier texts, the option
`prompt_history` reads the earlier texts of the same user in the table, in order of time.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import HISTORY_COLUMN, DataConfig
from factorcell.data.columns.readers import ColumnReader
from factorcell.data.columns.schema import Variable
from factorcell.data.columns.values import is_missing, short_repr
from factorcell.data.ragged import Ragged
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.data.tokenizers.vocabulary import Specials

START = 0  # provisional id of the start token


class PromptReader(ColumnReader):
    """Reads a column of prompts as token ids; of a long prompt, only the last tokens."""

    def read_with(self, tokenizer: Tokenizer, config: DataConfig) -> None:
        """Set the tokenizer that splits texts, and the limits of the prompts."""
        self.tokenizer, self.max_tokens, self.max_text_tokens = tokenizer, config.max_prompt_tokens, config.max_tokens
        self.max_texts = config.prompt_history if self.column == HISTORY_COLUMN else None
        self.ids: defaultdict[str, int] = defaultdict(lambda: len(self.ids) + START + 1)  # provisional ids of tokens
        self.sizes: list[int] = []

    def add(self, values: list[Any], rows: Sequence[int]) -> None:
        chunk_ids: list[int] = []
        for row, value in zip(rows, values, strict=True):
            segments = [[self.ids[token] for token in tokens] for tokens in self._split(value, row)]
            ids = join_segments(segments, self.max_tokens, START)
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
        if self.max_texts is None:
            return [self.tokenizer.split(text) for text in texts]
        # Earlier texts of the user are cut as `max_tokens` cuts the texts of a table.
        return [self.tokenizer.split(text)[: self.max_text_tokens] for text in texts[-self.max_texts :]]

    def build_variable(self, config: DataConfig) -> Variable:
        return self.declared_variable

    def ids_of_rows(self, tokenizer: Tokenizer) -> Ragged:
        """Return the ids of each row in the vocabulary of `tokenizer`, which may cut a word of training into pieces."""
        start = tokenizer.specials.start
        if tokenizer is self.tokenizer:
            ids_of_tokens: list[tuple[int, ...]] = [(token_id,) for token_id in tokenizer.encode(self.ids)]
        else:
            ids_of_tokens = [tuple(ids) for ids in tokenizer.encode_words(self.ids)]
        ids_of_tokens.insert(START, (start,))
        provisional_ids, prompts = iter(np.concatenate(self.chunk_arrays).tolist()), list[list[int]]()
        for size in self.sizes:
            ids = [*chain.from_iterable(ids_of_tokens[token] for token in islice(provisional_ids, size))]
            prompts.append(_retain_last(ids, self.max_tokens, start))
        return _to_ragged(prompts)


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


def _to_ragged(prompts: Sequence[Sequence[int]]) -> Ragged:
    sizes = [0, *map(len, prompts)]
    return Ragged(np.array([*chain.from_iterable(prompts)], dtype=np.int32), np.cumsum(sizes, dtype=np.int64))


def earlier_texts(
    texts: Ragged, users: NDArray[np.int32], times: NDArray[np.float64], config: DataConfig, specials: Specials
) -> Ragged:
    """Return for each text the prompt of the `prompt_history` texts that its user wrote before it.

    Args:
        texts: The ids of all texts, each from its start token to its end token, which a cut text lacks.
        users: The user of each text; 0 for a missing user, whose texts have no earlier texts.
        times: The time of each text; equal times are in the order of the rows.
        config: The limits of the prompts.
        specials: The ids of the start and end tokens.
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
    return _to_ragged(prompts)

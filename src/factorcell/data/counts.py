"""Content that enough users wrote: counts of popular texts for completion, and the targets that a training learns.

A text that fewer than `min_users` users wrote may be private and is omitted, as is a text that seems to contain private
content (`find_private_content`). The names of users are not stored. Texts are compared in canonical form
(`text_folds.same_text`).
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.data.columns.rows import category_names, to_values
from factorcell.data.columns.values import short_repr
from factorcell.data.corpus import Batch, Corpus, extend_hashes, target_offsets
from factorcell.data.private_content import is_public
from factorcell.data.text_folds import same_text
from factorcell.errors import UserError
from factorcell.io import files

POPULARITY = "popularity.jsonl"  # the file of a run folder with the counts of popular training texts
# n of the n-grams that `min_users` users must have written: of words, and of characters, graphemes and pieces of words.
WORD_ORDER, CHARACTER_ORDER = 2, 4
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair


@dataclass(frozen=True)
class TextCounts:
    """Counts of popular texts."""

    counts: Mapping[str, int]  # how often each text occurs, by its canonical form; the empty text is omitted
    total: int  # the number of all texts, popular or not
    min_users: int = 0  # the minimum number of users who wrote a text of `counts`; 0 if users were not distinguished

    @classmethod
    def of(
        cls, texts: Iterable[str], min_count: int, users: Iterable[Hashable] | None = None, min_users: int = 3
    ) -> "TextCounts":
        """Count `texts`, and omit those with fewer than `min_count` occurrences or `min_users` users.

        The user of each text is compared by `category_name`; missing users are not counted. Without `users`, the
        number of users of a text is not checked.
        """
        canonical_texts = list[str]()
        for number, text in enumerate(to_values(texts, "texts"), 1):
            if not isinstance(text, str):
                raise UserError(f"text {number}: expected a string, got {short_repr(text)}")
            canonical_texts.append(same_text(text))
        if users is None:
            return cls._count(canonical_texts, None, min_count, 0)
        id_by_name: defaultdict[str, int] = defaultdict(lambda: len(id_by_name) + 1)
        names = category_names(users, "users", len(canonical_texts))
        user_ids = np.array([0 if name is None else id_by_name[name] for name in names], np.int32)
        return cls._count(canonical_texts, user_ids, min_count, min_users)

    @classmethod
    def of_corpus(cls, corpus: Corpus, min_users: int) -> "TextCounts":
        """Count the texts that `min_users` wrote in a corpus with users and a tokenizer whose `join` restores texts.

        Texts that were cut and texts with an out-of-vocabulary token are not counted, because they cannot be restored.
        Texts with half of a surrogate pair are not counted either, because nobody can type them.
        """
        specials = corpus.tokenizer.specials

        def restore_text(row: int) -> str:
            """Return the canonical form of the text in a row, or an empty string for a text that is not counted."""
            ids = corpus.tokens[corpus.offsets[row] + 1 : corpus.offsets[row + 1]].tolist()
            if ids[-1] != specials.end or specials.unknown in ids:
                return ""
            text = same_text(corpus.tokenizer.join(corpus.tokenizer.decode(ids[:-1])))
            return "" if LONE_SURROGATE.search(text) else text

        return cls._count(map(restore_text, range(len(corpus))), corpus.users, 1, min_users)

    @classmethod
    def _count(
        cls, texts: Iterable[str], users: NDArray[np.int32] | None, min_count: int, min_users: int
    ) -> "TextCounts":
        """Count texts in canonical form; `users` are the ids of their users, 0 for a missing user."""
        index_by_text: defaultdict[str, int] = defaultdict(lambda: len(index_by_text))
        indices = np.fromiter(map(index_by_text.__getitem__, texts), np.int64)
        counts = np.bincount(indices)
        is_popular = counts >= min_count
        if users is not None:
            is_popular &= count_users(indices, users, len(counts)) >= min_users
        popular_texts = (text for text, index in index_by_text.items() if is_popular[index] and text)
        popular_counts = {text: int(counts[index_by_text[text]]) for text in popular_texts if is_public(text)}
        return cls(popular_counts, len(indices), min_users)

    def save(self, path: Path) -> None:
        """Write a JSON line with `total` and `min_users`, then one for each text in alphabetical order."""
        header = {"total": self.total, "min_text_users": self.min_users}
        rows = ({"text": text, "count": count} for text, count in sorted(self.counts.items()))
        files.write_rows(path, [header, *rows])

    @classmethod
    def open(cls, path: Path) -> "TextCounts":
        """Return the counts in a file that `save` wrote; raise `UserError` if it does not exist or is damaged."""
        rows = files.read_rows(path)
        try:
            counts = {str(row["text"]): int(row["count"]) for row in rows[1:]}
            header = rows[0]
            return cls(counts, int(header["total"]), int(header["min_text_users"]))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not a file of text counts ({error!r})") from None


def count_users(text_indices: NDArray[Any], users: NDArray[np.int32], text_count: int) -> NDArray[np.int64]:
    """Return how many users wrote each text, from the texts and users of all rows; 0 is a missing user."""
    has_user = users > 0
    # A pair is one number: the text in the upper 32 bits, the user in the lower 32 bits.
    pairs = np.unique((text_indices[has_user].astype(np.int64) << 32) | users[has_user])
    return np.bincount(pairs >> 32, minlength=text_count)


@dataclass(frozen=True)
class SharedTargets:
    """Which targets of a corpus are learned, because at least `min_users` users wrote their n-grams.

    The n-gram is the target and the n - 1 tokens before it, or fewer at the start of a text. The model reads all texts,
    but rare content (a password, a name) adds nothing to the loss.
    """

    is_learned: Tensor  # whether each target is learned, text after text (targets,)
    starts: Tensor  # index of the first target of each text, followed by the number of targets (texts + 1,)

    @classmethod
    def of(cls, corpus: Corpus, min_users: int) -> "SharedTargets":
        """Find the targets whose n-gram at least `min_users` users wrote; texts without a user are not counted."""
        is_word_level = not (corpus.tokenizer.is_character_level or corpus.tokenizer.is_subword)
        order = WORD_ORDER if is_word_level else CHARACTER_ORDER
        distinct_ngrams, ngram_of_target = np.unique(ngram_hashes(corpus, order), return_inverse=True)
        user_of_target = np.repeat(corpus.users, corpus.lengths)
        user_counts = count_users(ngram_of_target, user_of_target, len(distinct_ngrams))
        is_learned = (user_counts >= min_users)[ngram_of_target]
        return cls(torch.from_numpy(is_learned), torch.from_numpy(target_offsets(corpus)))

    def mask(self, batch: Batch) -> Tensor:
        """Return a mask (B, T) that is true at the learned targets of `batch`."""
        positions = torch.arange(batch.tokens.shape[1] - 1)
        first_targets = self.starts[batch.rows.cpu()]
        # The index of each target in the corpus. Indices of padding are limited to the last target.
        targets = (first_targets[:, None] + positions).clamp(max=len(self.is_learned) - 1)
        return self.is_learned[targets].to(batch.tokens.device) & batch.mask()


def ngram_hashes(corpus: Corpus, order: int) -> NDArray[np.uint64]:
    """Return, for each target, a 64-bit hash of the n-gram that ends with it: up to `order` tokens of the same text."""
    tokens = np.asarray(corpus.tokens, dtype=np.uint64) + np.uint64(1)  # 0 stands for positions before the text
    positions = np.arange(len(tokens)) - np.repeat(np.asarray(corpus.offsets[:-1]), corpus.lengths + 1)
    hashes = np.zeros(len(tokens), dtype=np.uint64)
    for distance in range(order - 1, -1, -1):
        # The token `distance` positions before each token, or 0 if that position is before the text.
        previous = np.zeros_like(tokens)
        earlier_tokens = tokens[: len(tokens) - distance]
        previous[distance:] = np.where(positions[distance:] >= distance, earlier_tokens, 0)
        hashes = extend_hashes(hashes, previous)
    return hashes[positions > 0]

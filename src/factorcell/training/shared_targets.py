"""The targets that training learns if it excludes n-grams that fewer than `min_users` users wrote.

A target is learned if at least `min_users` users wrote its n-gram: the target and the n - 1 tokens before it.
The model still reads all texts, but rare content (a password, a name) adds nothing to the loss.
n is 4 for characters, graphemes and pieces of words, and 2 for words. N-grams at the start of a text are shorter.

Shapes: B texts, T targets of the longest text.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import Config
from factorcell.data.corpus import Batch, Corpus, extend_hashes, target_offsets
from factorcell.data.counts import count_users

WORD_ORDER, CHARACTER_ORDER = 2, 4  # n


@dataclass(frozen=True)
class SharedTargets:
    """Which targets of a corpus are learned, because enough users wrote their n-grams.

    Attributes:
        is_learned: Whether each target is learned, text after text (targets,).
        starts: The index of the first target of each text, followed by the number of targets (texts + 1,).
    """

    is_learned: Tensor
    starts: Tensor

    @classmethod
    def of(cls, corpus: Corpus, config: Config) -> "SharedTargets":
        """Find the targets whose n-gram at least `min_users` users wrote; texts without a user are not counted."""
        is_word_level = not (corpus.tokenizer.is_character_level or corpus.tokenizer.is_subword)
        order = WORD_ORDER if is_word_level else CHARACTER_ORDER
        distinct_ngrams, ngram_of_target = np.unique(ngram_hashes(corpus, order), return_inverse=True)
        user_of_target = np.repeat(corpus.users, corpus.lengths)
        user_counts = count_users(ngram_of_target, user_of_target, len(distinct_ngrams))
        is_learned = (user_counts >= config.training.min_users)[ngram_of_target]
        return cls(torch.from_numpy(is_learned), torch.from_numpy(target_offsets(corpus)))

    def mask(self, batch: Batch) -> Tensor:
        """Return a mask (B, T) that is true at the learned targets of `batch`."""
        positions = torch.arange(batch.tokens.shape[1] - 1)
        is_target = positions < batch.lengths.cpu()[:, None]  # false at padding
        first_targets = self.starts[batch.rows.cpu()]
        # The index of each target in the corpus. Indices of padding are limited to the last target.
        targets = (first_targets[:, None] + positions).clamp(max=len(self.is_learned) - 1)
        return (self.is_learned[targets] & is_target).to(batch.tokens.device)

    def count(self, batch: Batch) -> int:
        """Return the number of learned targets of `batch`, or 1 if it has none, so that it can divide the loss."""
        return max(1, int(self.mask(batch).sum()))


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

"""The targets that training learns if it excludes what fewer than `min_users` users wrote.

A target is learned if at least that many users wrote its n-gram, the target and the tokens before it.
So the model reads the texts of one user as a whole, but rare content (a password, a name) adds nothing to the loss.
n is 4 for characters and graphemes and 2 for words; n-grams at the start of a text are shorter.

Shapes: B texts, T targets of the longest.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import Config
from factorcell.data.corpus import Batch, Corpus, extend_hashes, target_offsets
from factorcell.data.counts import count_users

ORDER, ORDER_OF_CHARACTERS = 2, 4


@dataclass(frozen=True)
class SharedTargets:
    """Which targets of a corpus are `learned`, text after text, and where those of each text start (rows + 1)."""

    learned: Tensor
    starts: Tensor

    @classmethod
    def of(cls, corpus: Corpus, config: Config) -> "SharedTargets":
        """Find the targets whose n-gram at least `min_users` users wrote; texts without a user do not count."""
        order = ORDER_OF_CHARACTERS if corpus.tokenizer.is_character_level else ORDER
        found, which = np.unique(ngrams(corpus, order), return_inverse=True)
        people = count_users(which, np.repeat(corpus.users, corpus.lengths), len(found))
        learned = (people >= config.training.min_users)[which]
        return cls(torch.from_numpy(learned), torch.from_numpy(target_offsets(corpus)))

    def mask(self, batch: Batch) -> Tensor:
        """Return (B, T), true at the targets of `batch` that are learned."""
        steps = torch.arange(batch.tokens.shape[1] - 1)
        rows, inside = batch.rows.cpu(), steps < batch.lengths.cpu()[:, None]
        index = (self.starts[rows][:, None] + steps).clamp(max=len(self.learned) - 1)
        return (self.learned[index] & inside).to(batch.tokens.device)

    def count(self, batch: Batch) -> int:
        """Count the learned targets of `batch`; at least 1, to divide by it."""
        return max(1, int(self.mask(batch).sum()))


def ngrams(corpus: Corpus, order: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of the n-gram that ends in each target, of at most `order` tokens of its text."""
    tokens = np.asarray(corpus.tokens, dtype=np.uint64) + np.uint64(1)  # 0 stands for what lies before a text
    places = np.arange(len(tokens)) - np.repeat(np.asarray(corpus.offsets[:-1]), corpus.lengths + 1)
    keys = np.zeros(len(tokens), dtype=np.uint64)
    for back in range(order - 1, -1, -1):
        before = np.zeros_like(tokens)
        before[back:] = np.where(places[back:] >= back, tokens[: len(tokens) - back], 0)
        keys = extend_hashes(keys, before)
    return keys[places > 0]

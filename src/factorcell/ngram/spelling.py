"""Probabilities of the spellings of out-of-vocabulary tokens (N tokens or texts).

    p(w | history) = p(<unk> | history) q(w) / (1 - sum_v q(v))       q(w) = prod_i q(x_i | x_1 ... x_{i-1})

A language model predicts the unknown token <unk> in place of an out-of-vocabulary token w with the characters x_i and
the end. q is an n-gram model of the characters of the vocabulary's tokens v, each counted once. The denominator removes
the probability of the tokens v, which are never spelled. All characters that no v has are equally probable.
"""

import functools
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from factorcell.config import CharacterOptions, Config
from factorcell.data.corpus import Corpus, is_known_target, target_offsets
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.ngram.ngram import NGram, count_ngrams

ORDER = 6  # higher orders hardly lower the nats of out-of-vocabulary tokens
CHARACTERS = sys.maxunicode + 1  # number of code points


class SpellingModel:
    """q of the tokens of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        specials = set(tokenizer.specials)
        tokens = [token for token_id, token in enumerate(tokenizer.tokens) if token_id not in specials]
        self.config = Config(tokenizer=CharacterOptions(min_count=1, max_vocabulary=CHARACTERS))
        corpus = prepare(_rows(tokens or [""]), self.config, truncate=False)
        self.ngram = NGram(Path(), self.config, corpus.tokenizer, count_ngrams(corpus, ORDER))
        other_characters = CHARACTERS - len(corpus.tokenizer) + len(corpus.tokenizer.specials)
        self.nats_of_other_character = math.log(other_characters)
        self.log_remainder = math.log1p(-float(np.exp(-self._raw_nats(corpus)).sum())) if tokens else 0.0

    def nats(self, tokens: Sequence[str]) -> NDArray[np.float64]:
        """Return the nats (N,) of the spellings of N out-of-vocabulary tokens."""
        if not tokens:
            return np.zeros(0)
        corpus = prepare(_rows(tokens), self.config, tokenizer=self.ngram.tokenizer, truncate=False)
        return self._raw_nats(corpus) + self.log_remainder

    def _raw_nats(self, corpus: Corpus) -> NDArray[np.float64]:
        """Return -log q (N,) of the tokens that are the texts of `corpus`."""
        nats = self.ngram.nats(corpus) + np.where(is_known_target(corpus), 0.0, self.nats_of_other_character)
        sums: NDArray[np.float64] = np.add.reduceat(nats, target_offsets(corpus)[:-1])
        return sums


spelling_model = functools.lru_cache(maxsize=8)(SpellingModel)  # the same model for the same tokenizer


def spelling_nats(corpus: Corpus) -> NDArray[np.float64]:
    """Return the nats of the spellings of all out-of-vocabulary tokens of each text (N,)."""
    tokens, texts = corpus.unknown_tokens()
    if not tokens:
        return np.zeros(len(corpus))
    distinct_tokens, indices = np.unique(np.array(tokens, dtype=object), return_inverse=True)
    nats = spelling_model(corpus.tokenizer).nats(distinct_tokens.tolist())
    return np.bincount(texts, nats[indices], minlength=len(corpus)).astype(np.float64)


def _rows(tokens: Sequence[str]) -> list[dict[str, str]]:
    return [{"text": token} for token in tokens]

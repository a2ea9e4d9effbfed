"""Texts of a table that also occur in the training table: a model predicts them better than new texts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import BLOCK_TOKENS, HASH_MULTIPLIER, Corpus, is_empty_text
from factorcell.evaluation.combination import training_table
from factorcell.evaluation.token_evidence import read_training_texts
from factorcell.model.run import Run

MIN_SHARE = 0.01  # share of repeated texts that is reported


def repeated_notices(corpus: Corpus, train: Corpus, name: str) -> Iterator[str]:
    """Yield a notice if more than 1 % of the texts of `corpus` are training texts; `name` says which texts they are."""
    is_repeated = np.isin(_hashes(corpus), _hashes(train)) & ~is_empty_text(corpus)
    if is_repeated.mean() > MIN_SHARE:
        yield (
            f"{is_repeated.sum():,} of {len(corpus):,} {name} also occur in the training table, token for token; "
            "figures of these texts are better than those of new texts"
        )


def repeated_training_texts(run: Run, table: Any) -> list[str]:
    """Return the notice of `repeated_notices` about a table; no notice if the training table of a run is not known."""
    path = training_table(run)
    if path is None:
        return []
    try:
        train = prepare(path, run.config, report_counts=False)  # usually in the cache since the training
    except UserError:  # the file has changed since the training
        return []
    if train.tokenizer.tokens != run.tokenizer.tokens:
        return []
    return [*repeated_notices(read_training_texts(run, table), train, "texts")]


def _hashes(corpus: Corpus) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each text (B,), of its tokens and of the spellings of its out-of-vocabulary tokens."""
    hashes = _hash_rows(corpus.tokens, corpus.offsets)
    if corpus.spellings is not None:
        hashes = hashes * HASH_MULTIPLIER + _hash_rows(corpus.spellings.values, corpus.spellings.offsets)
    return hashes


def _hash_rows(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the sum of (value + 1) * multiplier^position of each row (B,), modulo 2^64; 0 for an empty row."""
    sizes = np.diff(offsets)
    powers = np.cumprod(np.full(int(sizes.max(initial=1)), HASH_MULTIPLIER))
    hashes = np.zeros(len(sizes), dtype=np.uint64)
    block_count = 1 + len(values) // BLOCK_TOKENS
    for rows in np.array_split(np.flatnonzero(sizes), block_count):
        if len(rows):
            starts = offsets[rows] - offsets[rows[0]]
            block = np.asarray(values[offsets[rows[0]] : offsets[rows[-1] + 1]])
            positions = np.arange(len(block)) - np.repeat(starts, sizes[rows])
            hashes[rows] = np.add.reduceat((block.astype(np.uint64) + np.uint64(1)) * powers[positions], starts)
    return hashes

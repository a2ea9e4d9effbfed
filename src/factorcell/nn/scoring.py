"""The protocol of models that score texts, and sums of nats over targets."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Batch, Corpus, target_offsets
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError


class Scorer(Protocol):
    """A model of the probability of texts: a `Run`, an n-gram model, or several models that act as one model.

    Attributes:
        folder: Folder of the model.
        tokenizer: Tokenizer of the model.
        schema: Context variables of the model.
    """

    folder: Path
    tokenizer: Tokenizer
    schema: ContextSchema

    def prepare(self, source: Any, *, unknown: str = "group") -> Corpus:
        """Read texts from rows, a table or a file into the form that `nats` takes."""

    def nats(self, corpus: Corpus) -> NDArray[Any]:
        """Return the nats of all targets of `corpus` (`corpus.target_count` values), one text after the other."""


@dataclass(frozen=True)
class Tally:
    """A sum of nats over targets; the sum of two tallies counts the targets of both.

    Attributes:
        nats: Sum of the negative log-likelihoods.
        targets: Number of targets.
    """

    nats: float = 0.0
    targets: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.nats + other.nats, self.targets + other.targets)

    @property
    def perplexity(self) -> float:
        """exp(nats / targets), or NaN without targets."""
        return math.exp(self.nats / self.targets) if self.targets else math.nan


def mixed_nats(nats: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nats of a mixture from those of its M models.

    Args:
        nats: The nats of targets under each model (..., M).
        weights: The weights of the models, of the same shape or (M,).
    """
    lowest = nats.min(axis=-1, keepdims=True)
    mixed: NDArray[np.float64] = lowest[..., 0] - np.log((np.exp(lowest - nats) * weights).sum(axis=-1))
    return mixed


def put_batch(values: NDArray[Any], batch_values: NDArray[Any], batch: Batch, starts: NDArray[np.int64]) -> None:
    """Copy the values of the targets of a batch (B, T, ...) to the places of the targets in a corpus (targets, ...).

    `starts` are the `target_offsets` of the corpus.
    """
    for text_values, row, length in zip(batch_values, batch.rows.tolist(), batch.lengths.tolist(), strict=True):
        values[starts[row] : starts[row] + length] = text_values[:length]


def check_lengths(corpus: Corpus, limit: int | None, describe: Callable[[int], str]) -> None:
    """Raise a `UserError` if a text has more tokens than a model reads; None sets no limit.

    `describe` returns a phrase that identifies the text at an index in the source.
    """
    if limit is None:
        return
    lengths = corpus.read_lengths
    too_long = np.flatnonzero(lengths > limit)
    if len(too_long):
        first = too_long[0]
        count = f"; {len(too_long):,} texts are too long" if len(too_long) > 1 else ""
        raise UserError(
            f"{describe(int(first))}: the text has more tokens than the base can read: expected at "
            f"most {limit:,} with the start token and prompts, got {lengths[first]:,}; shorten it{count}"
        )


def score_rows(nats: NDArray[Any], corpus: Corpus, *, with_tokens: bool) -> list[dict[str, Any]]:
    """Return the rows of `Run.score` from the nats of all targets of `corpus`; `with_tokens` adds each target."""
    starts, rows = target_offsets(corpus), []
    for index in range(len(corpus)):
        text_nats = nats[starts[index] : starts[index + 1]].astype(np.float64)
        total = float(text_nats.sum())
        row: dict[str, Any] = {"row": index, "nats": total, "targets": len(text_nats)}
        row["perplexity"] = float(np.exp(total / max(1, len(text_nats))))
        if with_tokens:
            # The first token of a text is its start token, which is not a target.
            target_ids = corpus.tokens[corpus.offsets[index] + 1 : corpus.offsets[index + 1]].tolist()
            targets = zip(corpus.tokenizer.decode(target_ids), text_nats, strict=True)
            readable = corpus.tokenizer.readable
            row["tokens"] = [{"token": readable(token), "nats": float(value)} for token, value in targets]
        rows.append(row)
    return rows

"""Sums of nats, and the protocol of models that score."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from factorcell.data.corpus import Corpus
from factorcell.data.schema import ContextSchema
from factorcell.data.tokenizer import Tokenizer


class Scorer(Protocol):
    """A model of the probability of texts: a `Run`, an n-gram model, or several of them that act as one."""

    folder: Path
    tokenizer: Tokenizer
    schema: ContextSchema

    def prepare(self, source: Any, *, unknown: str = "error") -> Corpus:
        """Texts from rows, tables or a file, as `nats` takes them."""

    def nats(self, corpus: Corpus) -> NDArray[Any]:
        """Nats of every target, text after text (`corpus.targets` values)."""


@dataclass(frozen=True)
class Tally:
    """Nats and the targets they belong to. Tallies add up; the ratio is taken once."""

    nats: float = 0.0
    targets: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.nats + other.nats, self.targets + other.targets)

    @property
    def perplexity(self) -> float:
        """exp(nats / tokens); NaN of nothing."""
        return math.exp(self.nats / self.targets) if self.targets else math.nan

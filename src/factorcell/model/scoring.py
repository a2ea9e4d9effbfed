"""The protocol of models that score texts, and sums of nats over targets."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from factorcell.data.corpus import Corpus
from factorcell.data.schema import ContextSchema
from factorcell.data.tokenizer import Tokenizer


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

    def prepare(self, source: Any, *, unknown: str = "error") -> Corpus:
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

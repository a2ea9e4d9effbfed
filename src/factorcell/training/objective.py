"""What training minimises: the nats of texts and, if asked for, the nats of a text's true value among the values.

    nats(text | v) + weight nats(v | text)        p(v | text) = p(text | v) p(v) / sum over u of p(text | u) p(u)

v is the text's value of a category column, p(v) how often training has it; the rest of its context is as it is. So one
model scores, writes, and tells the values apart by Bayes' rule (TACL 2018, equation 7), which the first term alone
only asks for in passing.

Of a column with more values some others are drawn for every step, and the sum over all K others is taken as K times the
mean over those drawn. That is right on average, so that the logarithm of the sum, and with it these nats, is a little
too small (Jensen). A text has no such nats where its value is missing, rare or forgotten.

All passes over a text have the same dropout: a difference between values is one of the values.

A training has seen its texts before, so it would be too sure of their values to learn from them. Therefore, as in the
dropout of words of a classifier (Wager et al. 2014, "Altitude training"), each target of a text is left out of both
p(text | v) and p(text | u) at random.

Shapes: B texts, T targets of the longest, N other values that a text is compared with.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from factorcell import assignments
from factorcell.config import Config, TrainingConfig, UserError
from factorcell.data.context import Context
from factorcell.data.corpus import Batch
from factorcell.data.schema import Variable
from factorcell.model.language_model import LanguageModel
from factorcell.model.output import Picked, Reads, Samples
from factorcell.model.run import Run


@dataclass(frozen=True)
class Question:
    """Which value of the category `column` has each text? `known` (B,): those that are asked.

    `priors` (B,) and `other_priors` (B, N) are logarithms, of the true values and of those in `others` (B, N), which
    stand for all others. The share `dropout` of the targets is no evidence.
    """

    column: int
    weight: float
    dropout: float
    known: Tensor
    others: Tensor
    priors: Tensor
    other_priors: Tensor

    def nats(self, likelihood: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Weighted nats (B,) of the true values; log p(text) with them (B,) and with each of the others, N times (B,).

        Texts that are not asked have 0.
        """
        own, priors = likelihood + self.priors.to(likelihood.dtype), self.other_priors.to(likelihood.dtype)
        every = torch.stack([own, *(one + priors[:, n] for n, one in enumerate(others))])
        return (self.weight * (torch.logsumexp(every, 0) - own)).masked_fill(~self.known, 0.0)

    def evidence(self, nats: Tensor) -> Tensor:
        """Which of the targets of `nats` (B, T) are evidence: 1, or 0."""
        return (torch.rand_like(nats) >= self.dropout).to(nats.dtype)

    def with_other(self, context: Context, number: int) -> Context:
        """The contexts with the other value of that number."""
        categories = context.categories.clone()
        categories[:, self.column] = torch.where(self.known, self.others[:, number], categories[:, self.column])
        return replace(context, categories=categories)


@dataclass(frozen=True)
class ToldColumn:
    """A category column whose values are told apart: its place, the weight, and the log priors (K + 1,).

    Value 0 stands for rare ones and is not among those that are told. At most `most` others are compared at once, by
    all targets but the share `dropout`.
    """

    column: int
    weight: float
    priors: Tensor
    most: int
    dropout: float = 0.0

    @classmethod
    def of(cls, column: int, variable: Variable, weight: float, most: int, dropout: float = 0.0) -> "ToldColumn":
        """`UserError` for a column with less than two values."""
        counts = torch.tensor(variable.counts, dtype=torch.double)
        if len(counts) < 3:
            raise UserError(f"tell_apart: {variable.name} has {len(counts) - 1} values; there is nothing to tell apart")
        return cls(column, weight, (counts / counts[1:].sum()).log(), most, dropout)

    def ask(self, context: Context, random: np.random.Generator) -> Question:
        """The question about the texts with `context`; of many others the same steps from value to value for all."""
        values, device = len(self.priors) - 1, context.categories.device
        count = min(self.most, values - 1)
        steps = torch.from_numpy(1 + random.permutation(values - 1)[:count]).to(device)
        known = context.categories[:, self.column] > 0
        true = context.categories[:, self.column].where(known, 1)
        others = 1 + (true[:, None] - 1 + steps) % values
        priors = self.priors.to(device)
        share = math.log((values - 1) / count)
        return Question(self.column, self.weight, self.dropout, known, others, priors[true], priors[others] + share)


def check_told(config: Config) -> None:
    """`UserError` where values are to be told apart by a model in which nothing depends on the context."""
    model, asked = config.model, any(assignments.parsed("tell_apart", one)[1] for one in config.training.tell_apart)
    if asked and not (model.adapt or model.output_bias):
        alike = "it reads texts alike in every context, so there is nothing to tell apart"
        raise UserError(f"tell_apart of a model that is not adapted: {alike}; leave it out, or choose another model")


def told_columns(run: Run) -> tuple[ToldColumn, ...]:
    """The columns that `run` is to tell apart; none where nothing in its model depends on its context.

    `UserError` for a weight whose column is not said where there are several, or not there.
    """
    config: TrainingConfig = run.config.training
    categories = run.schema.categories
    names = [variable.name for variable in categories]
    for text in config.tell_apart:
        if not assignments.parsed("tell_apart", text)[0] and len(names) != 1:
            valid = f"COLUMN={text} with one of {', '.join(names)}" if names else "left out: no context is a category"
            raise UserError(f"tell_apart is {text!r}; it must be {valid}")
    weights = assignments.numbers("tell_apart", config.tell_apart, names)
    asked = zip(range(len(names)), categories, weights, strict=True)
    how = config.tell_values, config.tell_dropout
    found = [ToldColumn.of(place, one, weight, *how) for place, one, weight in asked if weight]
    return tuple(found) if run.model.adapted else ()


class Objective(nn.Module):
    """The nats that training minimises, as a `forward` of its own: there gradients of several processes meet."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        batch: Batch,
        samples: Samples | None,
        reads: Reads | None = None,
        picked: Picked | None = None,
        learned: Tensor | None = None,
        questions: Sequence[Question] = (),
    ) -> Tensor:
        """Nats (B, T), exact or against `samples`, 0 but at the targets `learned` (B, T); after them (B, 1) a question.

        `reads` and `picked` as `LanguageModel.sampled`; they hold for all values of a question.
        """
        again = same_noise(batch.tokens.device) if questions else None

        def nats_of(given: Batch) -> Tensor:
            nats: Tensor = self.model(given) if samples is None else self.model.sampled(given, samples, reads, picked)
            return nats if learned is None else nats * learned

        nats = nats_of(batch)
        columns = [nats]
        for question in questions:
            others, evidence = [], question.evidence(nats) if self.model.training else torch.ones_like(nats)
            for number in range(question.others.shape[1]):
                assert again is not None
                again()
                other = replace(batch, context=question.with_other(batch.context, number))
                others.append(-(nats_of(other) * evidence).sum(1))
            columns.append(question.nats(-(nats * evidence).sum(1), others)[:, None])
        return torch.cat(columns, dim=1) if questions else nats


def same_noise(device: torch.device) -> Callable[[], None]:
    """What sets the random numbers of the processor and of `device` back to where they are now."""
    here = torch.get_rng_state()
    there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def again() -> None:
        torch.set_rng_state(here)
        if there is not None:
            torch.cuda.set_rng_state(there, device)

    return again

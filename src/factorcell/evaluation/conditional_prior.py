"""The prior of a classification, p(target | other context variables), estimated from the training texts.

Bayes' rule over the values v of a target, for a text with the values o of the other variables, needs p(v | o):

    p(v | text, o) ~ p(text | v, o) p(v | o),    log p(v | o) = b_v + sum_j E_j(o_j)_v - log Z(o)

The second equation is a multinomial logistic regression: E_j(o_j) is an embedding of variable j with one number per
value v of the target. A missing value of a variable has its expected embedding. The training texts determine b and E,
with the penalty |E|^2 / 2 on the sum of their nats. A number has a linear term, and if that lowers the nats of held-out
values, also an embedding of its range (`number_ranges`). A run folder stores one prior for each categorical variable.
Without other variables, the prior is p(v), the frequency of v in training.

Shapes: B texts, K values of the target, P other variables (all numbers count as one).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell import files
from factorcell.config import UserError
from factorcell.data.context import Context
from factorcell.data.corpus import Corpus
from factorcell.data.schema import ContextSchema, Variable
from factorcell.evaluation.bayes_rule import normalize, to_log_prior
from factorcell.evaluation.dependence import Dependence
from factorcell.evaluation.number_ranges import SUFFIX, NumberRanges
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import accuracy_sums
from factorcell.model.encoder import Prefix
from factorcell.model.run import Run

FILE = "priors.safetensors"
RANGES = "ranges."  # start of the names of the tensors of number ranges
PENALTY = 1.0  # half of it is multiplied by the sum of the squared weights and added to the nats of all texts
MAX_VALUES = 256  # targets with more values have no conditional prior
MAX_TEXTS, MAX_ELEMENTS = 50_000, 1 << 20  # maximum number of texts, and of texts * values, in a fit
MAX_ITERATIONS = 50
SIGNIFICANT_ERRORS = 2.0  # standard errors of the gain in nats from which ranges of numbers are used
MIN_NUMBER_SHARE = 0.1  # a main number adds at least this share of the accuracy that all numbers add

CONTEXT_CLASSIFIER = "other columns, without the text"  # name of the prior as a classifier
Row = Mapping[str, Any]

Floats = NDArray[np.float64]


def _plausible_numbers(corpus: Corpus) -> NDArray[np.float32]:
    """Return the numbers (B, N), those outside the range of training as its nearest end, or as missing if they are far.

    Otherwise, the linear term of a mistyped year would outweigh any text. A number is far if its distance from the
    range is larger than the width of the range.
    """
    numbers = corpus.numbers.copy()
    for column, variable in enumerate(corpus.schema.numbers):
        if not variable.period:
            nearest = numbers[:, column].clip(variable.low, variable.high)
            is_far = np.abs(numbers[:, column] - nearest) > variable.high - variable.low
            numbers[:, column] = np.where(is_far, np.nan, nearest)
    return numbers


def _accuracy(logits: Tensor, labels: NDArray[np.int64]) -> Tensor:
    """Return the accuracies (P,) of predictions by logits (B, P, K)."""
    return (logits.argmax(2) == torch.from_numpy(labels)[:, None]).double().mean(0)


class ConditionalPrior(nn.Module):
    """The logistic regression of one target on all other variables of a schema, and on `ranges` of numbers."""

    def __init__(self, schema: ContextSchema, target: str, ranges: NumberRanges | None = None) -> None:
        """Create a regression with all weights zero."""
        super().__init__()
        self.ranges = ranges
        schema = schema if ranges is None else ranges.extend(schema)
        variable = schema.variable(target)
        self.target, self.column = target, schema.categories.index(variable)
        self.values = variable.values[1:]  # without the unknown value
        self.size = len(self.values)
        self.most_frequent = int(np.argmax(variable.counts[1:]))  # the index of the most frequent value
        # Sequences are read as bags of words, because their encoder could not learn from weights that start at zero.
        self.others = ContextSchema(
            tuple(
                replace(other, kind="text") if other.kind == "sequence" else other
                for other in schema.embedded.variables
                if other.name != target
            )
        )
        with torch.random.fork_rng(devices=[]):  # the initial values of the embeddings are random
            self.embeddings = Prefix(self.others, self.size)
        self.bias = nn.Parameter(torch.zeros(self.size))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, contexts: Context) -> Tensor:
        """Return log p(v | o) (B, K) for contexts without the target."""
        return F.log_softmax(self.embeddings(contexts).sum(1) + self.bias, dim=1)

    def other_context(self, corpus: Corpus, rows: NDArray[np.int64]) -> Context:
        """Return the contexts of the texts `rows` without the target and without prompts, with ranges if used."""
        corpus = replace(corpus, numbers=_plausible_numbers(corpus))
        contexts = (corpus if self.ranges is None else self.ranges.add_to(corpus)).context(rows)
        columns = [column for column in range(contexts.categories.shape[1]) if column != self.column]
        return replace(contexts, categories=contexts.categories[:, columns], prompts=())

    def log_probs(self, corpus: Corpus) -> Floats:
        """Return log p(v | o) (B, K) for all texts of a corpus."""
        blocks = np.array_split(np.arange(len(corpus)), 1 + len(corpus) * self.size // MAX_ELEMENTS)
        with torch.inference_mode():
            log_probs = [self(self.other_context(corpus, rows)).double().numpy() for rows in blocks]
        return np.concatenate(log_probs)

    def candidate_log_probs(self, corpus: Corpus, names: Sequence[str]) -> Floats:
        """Return the log probabilities (B, candidates) of some values of the target, normalized over these values."""
        return normalize(self.log_probs(corpus)[:, [self.values.index(name) for name in names]])

    def nats(self, corpus: Corpus) -> Floats:
        """Return the nats of the value of the target in each text that has one of its values."""
        labels = corpus.categories[:, self.column].astype(np.int64) - 1
        rows = np.flatnonzero(labels >= 0)
        nats: Floats = -self.log_probs(corpus.select(rows))[np.arange(len(rows)), labels[rows]]
        return nats

    @property
    def max_texts(self) -> int:
        """The largest number of texts on which the weights are fitted."""
        return min(MAX_TEXTS, MAX_ELEMENTS // self.size)

    def fit(self, corpus: Corpus) -> None:
        """Fit the weights on the texts of a corpus, or on a random part of a large one, by L-BFGS."""
        labels = corpus.categories[:, self.column].astype(np.int64) - 1
        rows = np.random.default_rng(0).permutation(np.flatnonzero(labels >= 0))
        rows = np.sort(rows[: self.max_texts])
        if not len(rows):
            return
        contexts, indices = self.other_context(corpus, rows), torch.arange(len(rows))
        if not (contexts.words or contexts.vectors):  # equal contexts are computed only once
            contexts, indices = contexts.distinct()
        counts = torch.zeros(len(contexts) * self.size)
        counts += torch.bincount(indices * self.size + torch.from_numpy(labels[rows]), minlength=len(counts))
        counts = counts.view(len(contexts), self.size)
        frequencies = (counts.sum(0) + 1) / (len(rows) + self.size)
        self.bias.data = frequencies.log()
        weights = [parameter for parameter in self.parameters() if parameter is not self.bias]
        optimizer = torch.optim.LBFGS(
            self.parameters(), max_iter=MAX_ITERATIONS, tolerance_change=1e-7, line_search_fn="strong_wolfe"
        )

        def mean_loss() -> Tensor:
            optimizer.zero_grad()
            penalty = sum((weight.square().sum() for weight in weights), torch.zeros(()))
            loss: Tensor = (PENALTY / 2 * penalty - (counts * self(contexts)).sum()) / len(rows)
            torch.autograd.backward(loss)
            return loss

        with torch.enable_grad():
            optimizer.step(mean_loss)  # type: ignore[no-untyped-call]

    def dependence(self, corpus: Corpus) -> Dependence | None:
        """Measure on held-out texts how well the other variables predict the target; None without labelled texts."""
        labels = corpus.categories[:, self.column].astype(np.int64) - 1
        rows = np.flatnonzero(labels >= 0)
        if not len(rows):
            return None
        labels, everywhere = labels[rows], np.ones(len(rows), dtype=bool)
        contexts = self.other_context(corpus, rows)
        with torch.inference_mode():
            embeddings = self.embeddings(contexts)  # (B, P, K)
            logits = embeddings.sum(1) + self.bias
            mean = embeddings.mean(0)
            others = self.bias + mean.sum(0) - mean  # of each variable: the other variables have their mean embedding
            accuracies = _accuracy(embeddings + others, labels)
            names = self._names()
            best = int(accuracies.argmax())
            main = (names[best],) if best < len(names) else self._main_numbers(contexts, others[-1], labels)
        predictions = [logits.argmax(1).numpy(), np.full(len(rows), self.most_frequent)]
        figures = [[accuracy_sums("", predicted == labels, everywhere)] for predicted in predictions]
        ratios = Ratios.from_sums(figures)
        assert ratios is not None  # both figures have the same texts
        accuracy, majority = ratios.resampled[0].tolist()
        return Dependence(self.target, accuracy, majority, ratios.difference(0, 1), main)

    def _names(self) -> list[str]:
        """Return the names of the embeddings of `Prefix`, without the last, that of all numbers."""
        variables = (*self.others.categories, *self.others.texts, *self.others.vectors)
        return [variable.name.removesuffix(SUFFIX) for variable in variables]

    def _main_numbers(self, contexts: Context, others: Tensor, labels: NDArray[np.int64]) -> tuple[str, ...]:
        """Return the numbers whose removal costs a share of the accuracy of all numbers, at least the best number.

        `others` (K,) are the logits of the other variables.
        """

        def accuracy(missing: Collection[int]) -> float:
            numbers = contexts.numbers.clone()
            numbers[:, [*missing]] = torch.nan
            embeddings = self.embeddings(replace(contexts, numbers=numbers))[:, -1:]
            return float(_accuracy(embeddings + others, labels))

        columns = range(contexts.numbers.shape[1])
        total = accuracy([])
        min_loss = MIN_NUMBER_SHARE * (total - accuracy(columns))
        main = [column for column in columns if total - accuracy([column]) > min_loss]
        main = main or [max(columns, key=lambda column: accuracy({*columns} - {column}))]
        return tuple(self.others.numbers[column].name for column in main)


def possible_targets(schema: ContextSchema) -> list[Variable]:
    """Return the categories of a schema that can have a conditional prior."""
    if len(schema.embedded.variables) < 2:
        return []
    return [variable for variable in schema.categories if 3 <= len(variable.values) <= MAX_VALUES + 1]


def prior_targets(run: Run) -> list[str]:
    """Return the names of the categories of a run that get a conditional prior; none for an unadapted run."""
    return [variable.name for variable in possible_targets(run.schema)] if run.model.is_adapted else []


def fit_prior(target: str, train: Corpus, held_out: Corpus) -> ConditionalPrior:
    """Fit the prior of a target, with ranges of numbers if they significantly lower the nats of held-out values."""
    linear = ConditionalPrior(train.schema, target)
    linear.fit(train)
    if not train.schema.numbers:
        return linear
    with_ranges = ConditionalPrior(train.schema, target, NumberRanges.of(train))
    with_ranges.fit(train)
    gains = linear.nats(held_out) - with_ranges.nats(held_out)
    is_better = len(gains) > 1 and gains.mean() > SIGNIFICANT_ERRORS * gains.std() / len(gains) ** 0.5
    return with_ranges if is_better else linear


def save_priors(run: Run, train: Corpus, held_out: Corpus) -> None:
    """Fit the priors of a run, measure on held-out texts how well they predict, and save both in the run folder."""
    tensors: dict[str, Tensor] = {}
    facts: files.Row = {}
    for target in prior_targets(run):
        prior = fit_prior(target, train, held_out)
        prefix = _prefix(run.schema, target)
        tensors |= {f"{prefix}{name}": parameter for name, parameter in prior.named_parameters()}
        if prior.ranges is not None:
            parts = {"edges": prior.ranges.edges, "counts": prior.ranges.counts}
            arrays = {f"{part}.{index}": array for part in parts for index, array in enumerate(parts[part])}
            tensors |= {f"{prefix}{RANGES}{name}": torch.from_numpy(array) for name, array in arrays.items()}
        if (dependence := prior.dependence(held_out)) is not None:
            facts[target] = dependence.to_row()
    if tensors:
        files.save_tensors(run.folder / FILE, tensors, facts)


def load_priors(folder: Path, schema: ContextSchema) -> dict[str, ConditionalPrior]:
    """Read the priors of a run folder by target."""
    path = folder / FILE
    tensors = files.load_tensors(path)[0] if path.exists() else {}
    priors: dict[str, ConditionalPrior] = {}
    for variable in schema.categories:
        prefix = _prefix(schema, variable.name)
        weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        if not weights:
            continue
        saved_ranges = {name: weights.pop(name).numpy() for name in [*weights] if name.startswith(RANGES)}
        try:
            prior = ConditionalPrior(schema, variable.name, _read_ranges(schema, saved_ranges))
        except KeyError:
            raise _foreign_prior_error(path) from None
        expected = {name: parameter.shape for name, parameter in prior.named_parameters()}
        if expected != {name: weight.shape for name, weight in weights.items()}:
            raise _foreign_prior_error(path)
        prior.load_state_dict(weights)
        priors[variable.name] = prior
    return priors


def _read_ranges(schema: ContextSchema, arrays: Mapping[str, NDArray[Any]]) -> NumberRanges | None:
    """Return the ranges of the numbers of a schema from the arrays of a file; None without arrays."""
    if not arrays:
        return None
    edges, counts = (
        tuple(arrays[f"{RANGES}{part}.{index}"] for index in range(len(schema.numbers))) for part in ("edges", "counts")
    )
    return NumberRanges(edges, counts)


def _foreign_prior_error(path: Path) -> UserError:
    return UserError(f"{path}: does not belong to this schema; train the run again")


def load_dependences(folder: Path) -> list[Dependence]:
    """Read how well the other variables predict each target; no dependences without priors."""
    path = folder / FILE
    rows = files.load_tensors(path)[1] if path.exists() else {}
    return [dependence for target, row in rows.items() if (dependence := Dependence.from_row(target, row))]


def _prefix(schema: ContextSchema, target: str) -> str:
    """Return the prefix of the tensors of a target: its index, because not every column name is a valid tensor name."""
    return f"{schema.categories.index(schema.variable(target))}:"


def applicable_prior(
    priors: Mapping[str, ConditionalPrior], target: str, columns: Collection[str]
) -> ConditionalPrior | None:
    """Return the conditional prior of a target for texts with these context `columns`; None if they have none."""
    prior = priors.get(target)
    has_context = prior is not None and any(other.source_column in columns for other in prior.others.variables)
    return prior if has_context else None


def training_log_prior(variable: Variable, names: Sequence[str]) -> Floats:
    """Return the log frequencies (K,) of the values `names` in training, among these values; uniform without counts."""
    counts = np.array([variable.counts_by_value[name] for name in names])
    return to_log_prior(counts if counts.any() else np.ones(len(names)))


def training_notices(run: Run) -> Iterator[str]:
    """Yield a notice for each target that the other variables predict."""
    for dependence in load_dependences(run.folder):
        if dependence.is_strong:
            yield f"{dependence.describe()}; `classify --target {dependence.target}` uses this as a prior"


def _strong_dependence(run: Run, target: str | None) -> Dependence | None:
    dependences = (dependence for dependence in load_dependences(run.folder) if dependence.is_strong)
    return next((dependence for dependence in dependences if dependence.target == target), None)


def classification_notices(run: Run, target: str, priors: str) -> Iterator[str]:
    """Yield a notice if the other variables predict the target of a classification with these `priors`."""
    if dependence := _strong_dependence(run, target):
        advice = (
            f"to classify by the text alone, train a run whose only context column is {target}"
            if priors == "conditional"
            else f"{priors} priors ignore this; choose --priors conditional"
        )
        yield f"{dependence.describe()}; {advice}"

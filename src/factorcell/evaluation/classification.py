"""Which context does a text have? Bayes' rule over the contexts that it might have.

A text is given the candidate of highest log p(text given candidate) + log prior (TACL 2018, equation 7), with the exact
softmax. Candidates are the values of a categorical variable, or named points of numeric ones, such as cities.

Shapes: B texts, K candidates, C categorical variables, N numeric ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell import limits
from factorcell.choices import PRIORS, PROPOSALS
from factorcell.config import UserError, choose
from factorcell.data.context import Context
from factorcell.data.corpus import Batch, Corpus
from factorcell.data.schema import Variable
from factorcell.data.tables import open_table
from factorcell.data.values import category_name, is_missing, to_number
from factorcell.evaluation import negatives
from factorcell.evaluation.calibration import calibration_error, fit_temperature, tempered, value_nats
from factorcell.evaluation.distances import distances
from factorcell.evaluation.statistics import auc
from factorcell.evaluation.text_figures import TextSums, key_of, of_right
from factorcell.model.language_model import Conditioned
from factorcell.model.output import Samples
from factorcell.model.run import TOKENS, Run

Row = dict[str, Any]
Floats = NDArray[np.float64]


def log_likelihoods(
    run: Run,
    corpus: Corpus,
    candidates: Sequence[Mapping[str, Any]],
    *,
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
) -> Floats:
    """log p(text given candidate) (B, K). A candidate sets some variables; each text keeps its other ones.

    `candidates` are dicts from variable to value, such as `{"stars": "5"}` or `{"lat": 48.9, "lon": 2.4}`.
    With `samples` the softmax is over that many draws, the same for all texts and candidates, in place of all tokens
    (thesis, section 3.4): faster, good enough to compare candidates, and no measure of perplexity. They are drawn by a
    `proposal` of `evaluation.negatives`.
    """
    limits.check(samples=samples, seed=seed)
    choose("proposal", proposal, PROPOSALS)
    drawn = negatives.draw(run, samples, seed, proposal) if samples else None
    columns = [_candidate(run, candidate) for candidate in candidates]
    result = np.zeros((len(corpus), len(candidates)))
    same = not (corpus.bags or corpus.vectors) and len(np.unique(_others(run, corpus, candidates[0]), axis=0)) == 1
    shared = None
    with run.scoring():
        if same:  # only the candidates matter: all of them are prepared once
            only = corpus.context(np.zeros(1, dtype=np.int64)).to(run.device)
            shared = run.model.condition(_contexts(only, columns))
        for rows in corpus.batches(max(1, TOKENS // min(len(candidates), 64))):
            batch = run.batch(corpus, rows)
            width = max(1, TOKENS // (batch.tokens.shape[1] * len(rows)))  # candidates at once
            for begin in range(0, len(columns), width):
                part = columns[begin : begin + width]
                chosen = torch.arange(begin, begin + len(part), device=run.device)
                prepared = shared.select(chosen) if shared else None
                result[rows, begin : begin + width] = -_candidate_nats(run, batch, part, prepared, drawn)
    return result


def _candidate_nats(
    run: Run,
    batch: Batch,
    columns: list[tuple[Tensor, Tensor]],
    prepared: Conditioned | None,
    samples: Samples | None,
) -> Floats:
    """Nats (B, K) of a batch under each of K candidates, in one batch of B x K texts."""
    texts, count = len(batch.rows), len(columns)
    which = torch.arange(count, device=run.device).repeat(texts)
    if prepared is None:
        distinct, which = _contexts(batch.context, columns).distinct()
        prepared = run.model.condition(distinct)
    repeated = torch.arange(texts, device=run.device).repeat_interleave(count)
    wide = Batch(batch.tokens[repeated], batch.lengths[repeated], batch.context, batch.rows[repeated])
    chosen = prepared.select(which)
    nats = run.model(wide, chosen) if samples is None else run.model.sampled(wide, samples, conditioned=chosen)
    summed: Floats = nats.double().sum(1).view(texts, count).cpu().numpy()
    return summed


def _candidate(run: Run, candidate: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """What a candidate sets: categories (C,), -2 where it sets none, and numbers (N,), infinite where it sets none."""
    categories = torch.full((len(run.schema.categories),), -2)
    numbers = torch.full((len(run.schema.numbers),), torch.inf)
    for name, value in candidate.items():
        variable = run.schema.variable(name)
        if variable.kind == "category":
            known = category_name(value)
            _choose_value(run, variable, known, variable.values)
            categories[run.schema.categories.index(variable)] = variable.values.index(known)
        elif variable in run.schema.numbers:
            number = to_number(value)
            if number is None:
                raise UserError(f"{name} is {value!r}, not a number")
            numbers[run.schema.numbers.index(variable)] = number % variable.period if variable.period else number
        else:
            raise UserError(f"{name} is a {variable.kind}; candidates are values of a category, or numbers")
    return categories.to(run.device), numbers.to(run.device)


def _contexts(context: Context, columns: list[tuple[Tensor, Tensor]]) -> Context:
    """The contexts of B texts with K candidates put in: (B x K), candidates fastest."""
    categories = torch.stack([column[0] for column in columns]).repeat(len(context), 1)
    numbers = torch.stack([column[1] for column in columns]).repeat(len(context), 1)
    rows = torch.arange(len(context), device=categories.device)
    wide = context.select(rows.repeat_interleave(len(columns)))
    return replace(
        wide,
        categories=torch.where(categories == -2, wide.categories, categories),
        numbers=torch.where(numbers == torch.inf, wide.numbers, numbers),
    )


def _others(run: Run, corpus: Corpus, candidate: Mapping[str, Any]) -> NDArray[Any]:
    """The categories and numbers of all texts that a candidate leaves alone."""
    categories = [i for i, variable in enumerate(run.schema.categories) if variable.name not in candidate]
    numbers = [i for i, variable in enumerate(run.schema.numbers) if variable.name not in candidate]
    return np.concatenate([corpus.categories[:, categories], corpus.numbers[:, numbers]], axis=1)


@dataclass(frozen=True)
class Classification:
    """Texts judged by Bayes' rule: `names` (K) of the candidates, `log_posterior` (B, K), `truth` (B), -1: unknown.

    `score` (B, K) is minus the perplexity, z-normalised over the candidates: the detection score of the 2017 paper.
    Where they are told: `missing` (B,) are the texts without any value, `by_training` (B,) what would be predicted
    with the priors of training, and `key` tells texts and candidates from others. `posterior_at_1` is what
    `log_posterior` was before it got its `temperature`.
    """

    names: tuple[str, ...]
    log_posterior: Floats
    score: Floats
    truth: NDArray[np.int64]
    distractor: NDArray[np.bool_]
    missing: NDArray[np.bool_] | None = None
    by_training: NDArray[np.int64] | None = None
    key: str = ""
    temperature: float = 1.0
    posterior_at_1: Floats | None = None

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The most probable candidate of each text (B,)."""
        best: NDArray[np.int64] = self.log_posterior.argmax(1)
        return best

    @property
    def probabilities(self) -> Floats:
        """p(candidate given text) (B, K)."""
        return np.exp(self.log_posterior)

    def at(self, temperature: float) -> "Classification":
        """The same with all probabilities at a temperature; see `evaluation.calibration`."""
        posterior = tempered(self.log_posterior, temperature)
        return replace(self, log_posterior=posterior, temperature=temperature, posterior_at_1=self.log_posterior)

    def fitted_temperature(self) -> float:
        """The temperature that suits the texts that are judged."""
        judged = self.truth >= 0
        return fit_temperature(self.log_posterior[judged], self.truth[judged])

    def _calibration(self) -> Row:
        """How sure it is and may be: the calibration error and the mean nats of true values, also as they were at 1."""
        judged = self.truth >= 0
        found: Row = {}
        for suffix, posterior in (("", self.log_posterior), ("_at_1", self.posterior_at_1)):
            if posterior is not None:
                found[f"calibration_error{suffix}"] = calibration_error(np.exp(posterior[judged]), self.truth[judged])
                found[f"value_nats{suffix}"] = value_nats(posterior[judged], self.truth[judged])
        return found if self.posterior_at_1 is None else {"temperature": self.temperature, **found}

    def confusion(self) -> NDArray[np.int64]:
        """Counts (K, K): rows are true values, columns predicted ones."""
        judged, size = self.truth >= 0, len(self.names)
        flat = np.bincount(self.truth[judged] * size + self.predicted[judged], minlength=size * size)
        counts: NDArray[np.int64] = flat.reshape(size, size)
        return counts

    def metrics(self) -> Row:
        """Accuracy, macro F1, mean AUC, calibration, and per value count, precision, recall, F1 and AUC.

        Beside the accuracy `majority`, the share of the most frequent value among the texts that are judged.
        """
        counts = self.confusion()
        right, true, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
        values: list[Row] = []
        for index, name in enumerate(self.names):
            scale = int(true[index] + predicted[index])
            values.append(
                {
                    "value": name,
                    "count": int(true[index]),
                    "precision": right[index] / predicted[index] if predicted[index] else math.nan,
                    "recall": right[index] / true[index] if true[index] else math.nan,
                    "f1": 2 * right[index] / scale if scale else math.nan,
                    "auc": self._auc(index),
                }
            )
        present = [value for value in values if value["count"]]
        return {
            "texts": int(counts.sum()),
            "distractors": int(self.distractor.sum()),
            **self._left_out(),
            "accuracy": float(right.sum() / counts.sum()) if counts.sum() else math.nan,
            **self._accuracy_by_training(),
            "majority": float(true.max() / counts.sum()) if counts.sum() else math.nan,
            "majority_value": self.names[int(true.argmax())] if counts.sum() else None,
            "macro_f1": _mean([value["f1"] for value in present]),
            "auc": _mean([value["auc"] for value in present]),
            **self._calibration(),
            "values": [{key: _plain(item) for key, item in value.items()} for value in values],
        }

    def _left_out(self) -> Row:
        """How many texts are not judged; where it is told, how many for want of a value, and of other values."""
        left = (self.truth < 0) & ~self.distractor
        if self.missing is None:
            return {"left_out": int(left.sum())}
        missing = int((left & self.missing).sum())
        return {"left_out": int(left.sum()), "left_out_missing": missing, "left_out_other": int(left.sum()) - missing}

    def _accuracy_by_training(self) -> Row:
        """The accuracy that the priors of training would give, where they were not those used."""
        judged = self.truth >= 0
        if self.by_training is None or not judged.any():
            return {}
        return {"accuracy_training_priors": float((self.by_training == self.truth)[judged].mean())}

    def _auc(self, index: int) -> float:
        judged = (self.truth >= 0) | self.distractor
        return auc(self.score[judged, index], self.truth[judged] == index)


def judged_texts(found: Classification) -> TextSums:
    """What every text adds to the accuracy."""
    return of_right(found.key, found.predicted == found.truth, found.truth >= 0)


def _mean(values: Sequence[float]) -> float:
    """The mean of what is not NaN; NaN of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def judge(
    names: Sequence[str],
    likelihoods: Floats,
    lengths: NDArray[np.int64],
    truth: Sequence[str | None],
    priors: Mapping[str, float] | None = None,
    distractors: Sequence[str] = (),
) -> Classification:
    """Bayes' rule over `likelihoods` (B, K); `lengths` (B,) counts targets, `truth` names the right candidates."""
    prior = np.array([1.0 if priors is None else priors[name] for name in names])
    with np.errstate(divide="ignore"):
        joint = likelihoods + np.log(prior / prior.sum())
    top = joint.max(1, keepdims=True)
    posterior = joint - top - np.log(np.exp(joint - top).sum(1, keepdims=True))
    perplexity = np.exp(-likelihoods / np.maximum(1, lengths)[:, None])
    spread = perplexity.std(1, keepdims=True)
    score = (perplexity.mean(1, keepdims=True) - perplexity) / np.where(spread > 0, spread, 1.0)
    index = {name: number for number, name in enumerate(names)}
    which = np.array([-1 if name is None else index.get(name, -1) for name in truth], dtype=np.int64)
    return Classification(
        tuple(names), posterior, score, which, np.isin(np.array(truth, dtype=object), list(distractors))
    )


def classify(
    run: Run,
    source: Any,
    target: str,
    *,
    values: Sequence[str] = (),
    distractors: Sequence[str] = (),
    priors: str | Mapping[str, float] = "uniform",
    unknown: str = "error",
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
    calibrate: Any = None,
) -> Classification:
    """Which value of the categorical variable `target` each text has, all its other variables known.

    `values` chooses a subset; texts of other values are omitted, but for `distractors`, which count as negatives in
    the AUC. `priors`: uniform, "training" (the frequencies there), or weights by value. `samples`, `seed` and
    `proposal` as `log_likelihoods`. Where there is a table to `calibrate` on, probabilities get the temperature that
    suits its texts.
    """
    variable = run.schema.variable(target)
    if variable in run.schema.numbers:
        raise UserError(f"{target} is a number; classify it among named points (--points)")
    if variable.kind != "category":
        raise UserError(f"{target} is a {variable.kind}; only the values of a category can be told apart")
    names = [category_name(value) for value in values] or list(variable.values[1:])
    for name in names:
        _choose_value(run, variable, name, variable.values[1:])
    corpus = run.prepare(source, unknown=unknown, optional=(target,))
    known = variable.source in open_table(source).columns
    truth = _names(source, variable.source) if known else [None] * len(corpus)
    trained = dict(zip(variable.values, map(float, variable.counts), strict=True))
    weights = priors if isinstance(priors, Mapping) else None
    if priors == "training":
        weights = trained
    elif weights is None:
        choose("priors", str(priors), PRIORS)
    candidates = [{target: name} for name in names]
    likelihoods = log_likelihoods(run, corpus, candidates, samples=samples, seed=seed, proposal=proposal)
    found = judge(names, likelihoods, corpus.lengths, truth, weights, distractors)
    key = key_of(corpus, target, *names)
    found = replace(found, missing=np.array([name is None for name in truth], dtype=bool), key=key)
    if weights is not trained and any(trained[name] for name in names):
        found = replace(found, by_training=judge(names, likelihoods, corpus.lengths, truth, trained).predicted)
    if calibrate is None:
        return found
    how: Any = {"values": values, "priors": priors, "unknown": unknown, "samples": samples}
    return found.at(classify(run, calibrate, target, **how, seed=seed, proposal=proposal).fitted_temperature())


def _choose_value(run: Run, variable: Variable, name: str, valid: Sequence[str]) -> None:
    """`UserError` unless `name` is among the `valid` values of `variable`, which are not listed if they are users."""
    if variable.source != run.config.data.user:
        choose(f"value of {variable.name}", name, valid)
    elif name not in valid:
        raise UserError(f"unknown value of {variable.name} {name!r}; it knows {len(variable.values) - 1:,} values")


def _names(source: Any, column: str) -> list[str | None]:
    """The names of a categorical column, None where missing."""
    table = open_table(source)
    values = [value for chunk in table.chunks([column]) for value in chunk[column]]
    return [None if is_missing(value) else category_name(value) for value in values]


def classify_points(
    run: Run,
    source: Any,
    points: Mapping[str, Mapping[str, float]],
    *,
    within: float = math.inf,
    truth: Sequence[str | None] | None = None,
    unknown: str = "error",
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
) -> Classification:
    """Which of named `points` (such as cities, by `lat` and `lon`) each text belongs to, by its numeric variables.

    The right point of a text is the nearest one, by great circle in km where the points are latitude and longitude,
    else by distance in standard deviations (the short way round, if periodic); texts farther than `within` from all
    points are omitted. `truth` gives the right names instead.
    """
    limits.check(within=within)
    if not points:
        raise UserError("no points to choose from")
    variables = tuple(next(iter(points.values())))
    for name in variables:
        choose("numeric context variable", name, [variable.name for variable in run.schema.numbers])
    corpus = run.prepare(source, unknown=unknown, optional=variables if truth is not None else ())
    names = list(points)
    candidates = list(points.values())
    likelihoods = log_likelihoods(run, corpus, candidates, samples=samples, seed=seed, proposal=proposal)
    if truth is None:
        index = [run.schema.numbers.index(run.schema.variable(name)) for name in variables]
        here = corpus.numbers[:, index].astype(np.float64)
        there = np.array([[float(points[name][variable]) for variable in variables] for name in names])
        distance = distances(here, there, variables, run)
        nearest = distance.argmin(1)
        truth = [names[near] if far <= within else None for near, far in zip(nearest, distance.min(1), strict=True)]
    return replace(judge(names, likelihoods, corpus.lengths, truth), key=key_of(corpus, *names))

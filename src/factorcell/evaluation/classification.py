"""Which context does a text have? Bayes' rule over the contexts that it might have.

A text is given the candidate of highest log p(text given candidate) + log prior (TACL 2018, equation 7), with the exact
softmax. Candidates are the values of a categorical variable, or named points of numeric ones, such as cities.

Shapes: B texts, K candidates, C categorical variables, N numeric ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell import limits
from factorcell.choices import PRIORS, PROPOSALS
from factorcell.config import DataConfig, UserError, choose
from factorcell.data.chunks import listed
from factorcell.data.context import Context
from factorcell.data.corpus import Batch, Corpus
from factorcell.data.rows import by_name, labels_of, names_of
from factorcell.data.schema import ContextSchema, Variable
from factorcell.data.tables import open_table
from factorcell.data.values import category_name, name_or_none, to_number
from factorcell.evaluation import negatives
from factorcell.evaluation.bayes_rule import Classification, judge
from factorcell.evaluation.distances import distances
from factorcell.evaluation.text_figures import key_of
from factorcell.model.language_model import Conditioned
from factorcell.model.output import Samples
from factorcell.model.run import TOKENS, Run
from factorcell.progress import progress_bar

Row = dict[str, Any]
Floats = NDArray[np.float64]
ACCURACY = "an accuracy is of texts that have a value"  # why a table must have them


def log_likelihoods(
    run: Run,
    corpus: Corpus,
    candidates: Sequence[Mapping[str, Any]],
    *,
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
    progress: bool = False,
) -> Floats:
    """log p(text given candidate) (B, K). A candidate sets some variables; each text keeps its other ones.

    `candidates` are dicts from variable to value, such as `{"stars": "5"}` or `{"lat": 48.9, "lon": 2.4}`.
    With `samples` the softmax is over that many draws, the same for all texts and candidates, in place of all tokens
    (thesis, section 3.4): faster, good enough to compare candidates, and no measure of perplexity. They are drawn by a
    `proposal` of `evaluation.negatives`. `UserError` where the run is not adapted: all candidates would be as likely.
    """
    limits.check(samples=samples, seed=seed)
    choose("proposal", proposal, PROPOSALS)
    if not candidates:
        raise UserError("candidates: expected at least one, got none")
    if not run.model.adapted:
        alike = "it reads texts alike in every context, so there is nothing to tell apart"
        raise UserError(f"{run.folder.name} is not adapted: {alike}")
    drawn = negatives.draw(run, samples, seed, proposal) if samples else None
    columns = [_candidate(run, candidate) for candidate in candidates]
    result = np.zeros((len(corpus), len(candidates)))
    same = not (corpus.bags or corpus.vectors) and len(np.unique(_others(run, corpus, candidates[0]), axis=0)) == 1
    shared = None
    bar = progress_bar(total=result.size, desc="judging", unit="likelihoods", show=progress)
    with bar, run.scoring():
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
                bar.update(len(rows) * len(part))
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


def classify(
    run: Run,
    source: Any,
    target: str,
    *,
    values: Sequence[Any] = (),
    distractors: Sequence[Any] = (),
    priors: str | Mapping[Any, float] = "uniform",
    unknown: str = "error",
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
    calibrate: Any = None,
    progress: bool = False,
) -> Classification:
    """Which value of the categorical variable `target` each text has, all its other variables known.

    `values` chooses a subset; texts of other values are omitted, but for `distractors`, which count as negatives in
    the AUC. `priors`: uniform, "training" (the frequencies there), or weights by value. `samples`, `seed` and
    `proposal` as `log_likelihoods`. Where there is a table to `calibrate` on, the evidence of a text gets the
    temperature that suits its texts; `UserError` where none of them has a value to fit it by. Texts need no value to
    be classified; the metrics of texts that all lack one are NaN. Texts are cut after `max_tokens` tokens, as in
    training.
    """
    if run.schema.variable(target) in run.schema.numbers:
        raise UserError(f"{target} is a number; classify it among named points (--points)")
    variable = category(run.schema, target)
    names = names_of(values, "values") or list(variable.values[1:])
    distractors = names_of(distractors, "distractors")
    for name in names:
        _choose_value(run, variable, name, variable.values[1:])
    if len({*names, *distractors}) < 2:
        raise UserError(f"{target} has {'one value' if names else 'no value'} here: there is nothing to tell apart")
    if calibrate is not None:
        must_tell(calibrate, variable, names, run.config.data, "a temperature is fitted by the values that texts have")
    trained = variable.counted
    weights: Mapping[str, float] | None = None
    if hasattr(priors, "items"):  # also of a pandas column, such as the frequencies of values
        weights = _weights(dict(priors.items()), names)
    elif choose("priors", str(priors), PRIORS) == "training":
        weights = trained
    how: Any = {"samples": samples, "seed": seed, "proposal": proposal, "progress": progress}
    judged = [_judged(run, source, target, names, distractors, unknown, how)]
    judged += [] if calibrate is None else [_judged(run, calibrate, target, names, (), unknown, how)]

    def given(weights: Mapping[str, float] | None) -> Classification:
        found, *held = (one if weights is None else one.under(weights) for one in judged)
        return found.at(held[0].fitted_temperature()) if held else found

    found = given(weights)
    if weights is not trained and any(trained[name] for name in names):
        found = replace(found, by_training=given(trained).predicted)
    return found


def _weights(priors: Mapping[Any, float], names: Sequence[str]) -> dict[str, float]:
    """Return the weight of each candidate; `UserError` where it is missing or not a number from 0 on."""
    specified = by_name(priors, "priors")
    weights: dict[str, float] = {}
    for name in names:
        weight = to_number(specified.get(name))
        if weight is None or not weight >= 0:
            got = f"{specified[name]!r:.40}" if name in specified else "none"
            raise UserError(f"priors: expected a weight from 0 on for each candidate, got {got} for {name!r}")
        weights[name] = weight
    if not sum(weights.values()) > 0:
        raise UserError("priors: expected a weight above 0 for some candidate, got none")
    return weights


def _judged(
    run: Run,
    source: Any,
    target: str,
    names: Sequence[str],
    distractors: Sequence[str],
    unknown: str,
    how: Mapping[str, Any],
) -> Classification:
    """The texts of a table, all candidates being as frequent."""
    corpus = run.prepare(source, unknown=unknown, optional=(target,), progress=how["progress"])
    column = run.schema.variable(target).source
    truth = _names(source, column) if column in open_table(source).columns else [None] * len(corpus)
    likelihoods = log_likelihoods(run, corpus, [{target: name} for name in names], **how)
    missing = np.array([name is None for name in truth], dtype=bool)
    found = judge(names, likelihoods, corpus.lengths, truth, distractors, corpus.truncated)
    return replace(found, missing=missing, key=key_of(corpus, target, *names))


def _choose_value(run: Run, variable: Variable, name: str, valid: Sequence[str]) -> None:
    """`UserError` unless `name` is among the `valid` values of `variable`, which are not listed if they are users."""
    if variable.source != run.config.data.user:
        choose(f"value of {variable.name}", name, valid)
    elif name not in valid:
        raise UserError(f"unknown value of {variable.name} {name!r}; it knows {len(variable.values) - 1:,} values")


def category(schema: ContextSchema, target: str) -> Variable:
    """The variable of this name, whose values can be told apart; `UserError` if they cannot."""
    variable = schema.variable(target)
    if variable.kind != "category":
        raise UserError(f"{target} is a {variable.kind}; only the values of a category can be told apart")
    return variable


def must_tell(source: Any, variable: Variable, names: Sequence[str], config: DataConfig, why: str) -> None:
    """`UserError`, with the reason `why`, unless a text of `source` has one of the values `names`."""
    table = open_table(source)
    if variable.source not in table.columns:
        raise UserError(f"{table.lacks(variable.source).message}; {why}")
    if set(names).isdisjoint(_names(source, variable.source)):
        values = f"any of {len(names):,} users" if variable.source == config.user else listed(names)
        raise UserError(f"{table.name}: no text has a value of {variable.name} to choose among ({values}); {why}")


def _names(source: Any, column: str) -> list[str | None]:
    """The names of a categorical column, None where missing."""
    table = open_table(source)
    values = [value for chunk in table.chunks([column]) for value in chunk[column]]
    return [name_or_none(value) for value in values]


def classify_points(
    run: Run,
    source: Any,
    points: Mapping[Any, Mapping[str, float]],
    *,
    within: float = math.inf,
    truth: Sequence[Any] | None = None,
    unknown: str = "error",
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
    progress: bool = False,
) -> Classification:
    """Which of named `points` (such as cities, by `lat` and `lon`) each text belongs to, by its numeric variables.

    The right point of a text is the nearest one, by great circle in km where the points are latitude and longitude,
    else by distance in standard deviations (the short way round, if periodic). Texts farther than `within` from all
    points, or without the columns of these, are classified, but not judged. `truth` gives the right names instead.
    """
    limits.check(within=within)
    if not points:
        raise UserError("no points to choose from")
    points = by_name(points, "points")
    variables = tuple(next(iter(points.values())))
    for name in variables:
        choose("numeric context variable", name, [variable.name for variable in run.schema.numbers])
    for name, point in points.items():
        if set(point) != set(variables):
            raise UserError(f"point {name!r}: expected {', '.join(variables)}, got {', '.join(point) or 'nothing'}")
    corpus = run.prepare(source, unknown=unknown, optional=variables, progress=progress)
    truth = None if truth is None else labels_of(truth, "truth", len(corpus))
    names = list(points)
    candidates = list(points.values())
    how: Any = {"samples": samples, "seed": seed, "proposal": proposal, "progress": progress}
    likelihoods = log_likelihoods(run, corpus, candidates, **how)
    if truth is None:
        index = [run.schema.numbers.index(run.schema.variable(name)) for name in variables]
        here = corpus.numbers[:, index].astype(np.float64)
        there = np.array([[float(points[name][variable]) for variable in variables] for name in names])
        distance = distances(here, there, variables, run)
        nearest = distance.argmin(1)
        truth = [names[near] if far <= within else None for near, far in zip(nearest, distance.min(1), strict=True)]
    found = judge(names, likelihoods, corpus.lengths, truth, truncated=corpus.truncated)
    return replace(found, key=key_of(corpus, *names))

"""Generative classification: choose the context that maximizes p(text given context) p(context).

(TACL 2018, equation 7.) Candidates are the values of a categorical variable, or named points of numeric variables, such
as cities. The softmax is exact, or over sampled tokens, the same for all texts and candidates: the logits of drawn
tokens are lowered by the log probability of being drawn (Jean et al. 2015). The proposal is

    unigram    as often as tokens are targets in training, as in the papers (thesis 2018, sections 3.4 and 4.3)
    rank       by the place in the vocabulary, which is sorted by frequency

Shapes: B texts, K candidates, C categorical variables, N numeric variables.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell import limits, memory
from factorcell.choices import PRIORS, PROPOSALS
from factorcell.config import DataConfig, UserError, choose
from factorcell.data.chunks import format_names
from factorcell.data.context import Context
from factorcell.data.corpus import Batch, Corpus
from factorcell.data.rows import category_names, distinct_category_names, key_by_category_name
from factorcell.data.schema import ContextSchema, Variable
from factorcell.data.tables import open_table
from factorcell.data.values import category_name, category_name_or_none, to_number
from factorcell.evaluation.bayes_rule import Classification, apply_bayes_rule
from factorcell.evaluation.text_figures import texts_digest
from factorcell.model.language_model import Conditioning
from factorcell.model.output import Proposal, Samples
from factorcell.model.run import TOKENS, Run
from factorcell.progress import progress_bar

Row = dict[str, Any]
Floats = NDArray[np.float64]
ACCURACY_REASON = "an accuracy is of texts that have a value"  # why a table must have them
EARTH_RADIUS = 6371.0088  # km


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
    """Compute log p(text given candidate).

    Args:
        run: An adapted run.
        corpus: The texts, as `run` has prepared them.
        candidates: Dicts from variable to value, such as `{"stars": "5"}`; each text keeps its other variables.
        samples: The number of sampled tokens of the softmax, to compare candidates faster; 0: all tokens.
        seed: The seed of the samples.
        proposal: How they are drawn: "rank" or "unigram".
        progress: Whether to show the progress.

    Returns:
        Log likelihoods in nats (B, K).

    Raises:
        UserError: The run is not adapted (all candidates would be equally likely), or a candidate is not valid.
    """
    limits.check(samples=samples, seed=seed)
    choose("proposal", proposal, PROPOSALS)
    if not candidates:
        raise UserError("candidates: expected at least one, got none")
    if not run.model.adapted:
        alike = "it reads texts alike in every context, so there is nothing to tell apart"
        raise UserError(f"{run.folder.name} is not adapted: {alike}")
    drawn = draw_samples(run, samples, seed, proposal) if samples else None
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


def draw_samples(run: Run, count: int, seed: int = 0, proposal: str = "rank") -> Samples:
    """Draw `count` tokens with replacement; `UserError` if "unigram" is asked of a run without saved counts."""
    memory.check(24 * count, f"{count:,} samples")  # bytes of each
    if proposal == "unigram":
        counts = run.unigram_counts().clamp(min=1)  # a token that was never a target counts as seen once
        counts[run.tokenizer.specials.start] = 0
        by = Proposal(counts, count, run.device)
    else:
        by = Proposal.by_rank(run.tokenizer, count, run.device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return by.draw()


def _candidate_nats(
    run: Run,
    batch: Batch,
    columns: list[tuple[Tensor, Tensor]],
    prepared: Conditioning | None,
    samples: Samples | None,
) -> Floats:
    """Return the nats (B, K) of a batch under each of K candidates, read as one batch of B x K texts."""
    texts, count = len(batch.rows), len(columns)
    which = torch.arange(count, device=run.device).repeat(texts)
    contexts = _contexts(batch.context, columns)
    if prepared is None:
        distinct, which = contexts.distinct()
        prepared = run.model.condition(distinct)
    repeated = torch.arange(texts, device=run.device).repeat_interleave(count)
    wide = Batch(batch.tokens[repeated], batch.lengths[repeated], contexts, batch.rows[repeated])
    chosen = prepared.select(which)
    nats = run.model(wide, chosen) if samples is None else run.model.sampled_nats(wide, samples, conditioning=chosen)
    summed: Floats = nats.double().sum(1).view(texts, count).cpu().numpy()
    return summed


def _candidate(run: Run, candidate: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the categories (C,) and numbers (N,) of a candidate; -2 and infinity where it sets none."""
    categories = torch.full((len(run.schema.categories),), -2)
    numbers = torch.full((len(run.schema.numbers),), torch.inf)
    for name, value in candidate.items():
        variable = run.schema.variable(name)
        if variable.kind == "category":
            name = category_name(value)
            _choose_value(run, variable, name, variable.values)
            categories[run.schema.categories.index(variable)] = variable.values.index(name)
        elif variable in run.schema.numbers:
            number = to_number(value)
            if number is None:
                raise UserError(f"{name} is {value!r}, not a number")
            numbers[run.schema.numbers.index(variable)] = number % variable.period if variable.period else number
        else:
            raise UserError(f"{name} is a {variable.kind}; candidates are values of a category, or numbers")
    return categories.to(run.device), numbers.to(run.device)


def _contexts(context: Context, columns: list[tuple[Tensor, Tensor]]) -> Context:
    """Return the contexts of B texts with K candidates put in (B x K), candidates fastest."""
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
    """Return the categories and numbers of all texts that a candidate does not set."""
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
    priors: str = "uniform",
    unknown: str = "error",
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
    calibrate: Any = None,
    progress: bool = False,
) -> Classification:
    """Classify texts by the values of a categorical variable.

    Texts need no value; they are cut after `max_tokens` tokens, as in training.

    Args:
        run: An adapted run.
        source: The texts, with the other context columns of the run.
        target: The name of the variable.
        values: The candidates; all values by default. Texts with other values are omitted from the metrics.
        distractors: Other values, whose texts count as negatives in the AUC.
        priors: "uniform" or "training" (the frequencies there); `Classification.under` takes others.
        unknown: How to read context values that training never saw, as in `Run.prepare`.
        samples: The number of sampled tokens of the softmax; 0: all tokens (see `log_likelihoods`).
        seed: The seed of the samples.
        proposal: How they are drawn: "rank" or "unigram".
        calibrate: A table with values, on which the temperature of the evidence is fitted.
        progress: Whether to show the progress.

    Returns:
        The classification; the metrics of texts without a value are NaN.

    Raises:
        UserError: There are fewer than two candidates, or no text of `calibrate` has one.
    """
    if run.schema.variable(target) in run.schema.numbers:
        raise UserError(f"{target} is a number; classify it among named points (--points)")
    variable = category_variable(run.schema, target)
    names = distinct_category_names(values, "values") or list(variable.values[1:])
    distractors = distinct_category_names(distractors, "distractors")
    for name in names:
        _choose_value(run, variable, name, variable.values[1:])
    if len({*names, *distractors}) < 2:
        raise UserError(f"{target} has {'one value' if names else 'no value'} here: there is nothing to tell apart")
    if calibrate is not None:
        require_labels(
            calibrate, variable, names, run.config.data, "a temperature is fitted by the values that texts have"
        )
    choose("priors", priors, PRIORS)
    trained = variable.counts_by_value
    how: Any = {"samples": samples, "seed": seed, "proposal": proposal, "progress": progress}
    judged = [_judged(run, source, target, names, distractors, unknown, how)]
    judged += [] if calibrate is None else [_judged(run, calibrate, target, names, (), unknown, how)]

    def under(weights: Mapping[str, float] | None) -> Classification:
        result, *held = (one if weights is None else one.with_priors(weights) for one in judged)
        return result.at_temperature(held[0].fitted_temperature()) if held else result

    if priors == "training":
        return under(trained)
    result = under(None)
    return replace(result, by_training=under(trained).predicted) if any(trained[name] for name in names) else result


def _judged(
    run: Run,
    source: Any,
    target: str,
    names: Sequence[str],
    distractors: Sequence[str],
    unknown: str,
    how: Mapping[str, Any],
) -> Classification:
    corpus = run.prepare(source, unknown=unknown, optional=(target,), progress=how["progress"])
    column = run.schema.variable(target).source_column
    truth = _names(source, column) if column in open_table(source).columns else [None] * len(corpus)
    likelihoods = log_likelihoods(run, corpus, [{target: name} for name in names], **how)
    missing = np.array([name is None for name in truth], dtype=bool)
    result = apply_bayes_rule(names, likelihoods, corpus.lengths, truth, distractors, corpus.truncated)
    return replace(result, missing=missing, key=texts_digest(corpus, target, *names))


def _choose_value(run: Run, variable: Variable, name: str, valid: Sequence[str]) -> None:
    """Raise a `UserError` unless `name` is one of the `valid` values, which are not listed if they are users."""
    if variable.source_column != run.config.data.user:
        choose(f"value of {variable.name}", name, valid)
    elif name not in valid:
        raise UserError(f"unknown value of {variable.name} {name!r}; it knows {len(variable.values) - 1:,} values")


def category_variable(schema: ContextSchema, target: str) -> Variable:
    variable = schema.variable(target)
    if variable.kind != "category":
        raise UserError(f"{target} is a {variable.kind}; only the values of a category can be told apart")
    return variable


def require_labels(source: Any, variable: Variable, names: Sequence[str], config: DataConfig, reason: str) -> None:
    """Raise a `UserError` with the reason `why` unless a text of `source` has one of the values `names`."""
    table = open_table(source)
    if variable.source_column not in table.columns:
        raise UserError(f"{table.missing_column_error(variable.source_column).message}; {reason}")
    if set(names).isdisjoint(_names(source, variable.source_column)):
        values = f"any of {len(names):,} users" if variable.source_column == config.user else format_names(names)
        raise UserError(f"{table.name}: no text has a value of {variable.name} to choose among ({values}); {reason}")


def _names(source: Any, column: str) -> list[str | None]:
    return [category_name_or_none(value) for chunk in open_table(source).chunks([column]) for value in chunk[column]]


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
    """Classify texts by named points of numeric variables, such as cities.

    The true point of a text is the nearest one: by great circle in km if the points are latitude and longitude, else by
    distance in standard deviations (the short way round for periodic variables).

    Args:
        run: An adapted run.
        source: The texts.
        points: A dict from variable to value for each name, such as `{"Oslo": {"lat": 59.9, "lon": 10.7}}`.
        within: The largest distance of a text that is judged; texts without the columns are not judged either.
        truth: The name of the true point of each text (B,), None where unknown, instead of the nearest one.
        unknown: How to read context values that training never saw, as in `Run.prepare`.
        samples: The number of sampled tokens of the softmax; 0: all tokens (see `log_likelihoods`).
        seed: The seed of the samples.
        proposal: How they are drawn: "rank" or "unigram".
        progress: Whether to show the progress.

    Returns:
        The classification.

    Raises:
        UserError: The points are not points of numeric variables of the run.
    """
    limits.check(within=within)
    if not points:
        raise UserError("no points to choose from")
    points = key_by_category_name(points, "points")
    variables = tuple(next(iter(points.values())))
    for name in variables:
        choose("numeric context variable", name, [variable.name for variable in run.schema.numbers])
    for name, point in points.items():
        if set(point) != set(variables):
            raise UserError(f"point {name!r}: expected {', '.join(variables)}, got {', '.join(point) or 'nothing'}")
    corpus = run.prepare(source, unknown=unknown, optional=variables, progress=progress)
    truth = None if truth is None else category_names(truth, "truth", len(corpus))
    names, candidates = list(points), list(points.values())
    likelihoods = log_likelihoods(
        run, corpus, candidates, samples=samples, seed=seed, proposal=proposal, progress=progress
    )
    if truth is None:
        index = [run.schema.numbers.index(run.schema.variable(name)) for name in variables]
        texts = corpus.numbers[:, index].astype(np.float64)
        places = np.array([[float(point[variable]) for variable in variables] for point in candidates])
        distance = point_distances(texts, places, variables, run)
        nearest = distance.argmin(1)
        truth = [names[near] if far <= within else None for near, far in zip(nearest, distance.min(1), strict=True)]
    result = apply_bayes_rule(names, likelihoods, corpus.lengths, truth, truncated=corpus.truncated)
    return replace(result, key=texts_digest(corpus, *names))


def point_distances(texts: Floats, points: Floats, variables: Sequence[str], run: Run) -> Floats:
    """Return the distances (B, K) of `texts` (B, N) from `points` (K, N); km if they are latitude and longitude."""
    if [name[:3].lower() for name in variables] == ["lat", "lon"]:
        return great_circle_distances(texts, points)
    used = [run.schema.variable(name) for name in variables]
    period = np.array([variable.period or math.inf for variable in used])
    gap = np.abs(texts[:, None] - points[None]) % period
    scaled: Floats = np.minimum(gap, period - gap) / np.array([variable.deviation for variable in used])
    total: Floats = np.sqrt((scaled**2).sum(-1))
    return total


def great_circle_distances(first: Floats, second: Floats) -> Floats:
    """Return the great-circle distances (B, K) of places `first` (B, 2) and `second` (K, 2), degrees north and east."""
    a, b = np.radians(first)[:, None], np.radians(second)[None]
    half = np.sin((a - b) / 2) ** 2
    chord = half[..., 0] + np.cos(a[..., 0]) * np.cos(b[..., 0]) * half[..., 1]
    result: Floats = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.minimum(1.0, chord)))
    return result

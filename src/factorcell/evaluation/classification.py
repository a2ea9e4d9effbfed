"""Generative classification: choose the context that maximizes p(text given context) p(context) (TACL 2018, eq. 7).

Candidates are the values of a categorical variable, or named points of numeric variables, such as cities. The softmax
is exact, or computed over a sample of the vocabulary, which is the same for all texts and candidates. Then the log
probability that the sample contains a token is subtracted from the logit of the token (Jean et al. 2015). Tokens are
sampled from one of two distributions:

    unigram    the frequency of tokens as targets in training, as in the papers (thesis 2018, sections 3.4 and 4.3)
    rank       a function of the rank in the vocabulary, which is sorted by frequency

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
from factorcell.model.run import MAX_BATCH_TOKENS, Run
from factorcell.progress import progress_bar

Row = dict[str, Any]
Floats = NDArray[np.float64]
ACCURACY_REASON = "the accuracy is computed over texts with a value"  # why `require_labels` rejects a table
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
        candidates: A dict from variable to value for each candidate (K), such as `{"stars": "5"}`. For variables that
            the dict lacks, each text keeps its own values.
        samples: The number of tokens that are sampled from the vocabulary for the softmax; 0 computes the exact one.
        seed: The seed of the sample.
        proposal: The distribution to sample from: "unigram" (training frequencies) or "rank" (vocabulary ranks).
        progress: Whether to show a progress bar.

    Returns:
        The log likelihoods in nats (B, K).

    Raises:
        UserError: The run is not adapted (all candidates would be equally likely), or a candidate has an unknown
            variable or value.
    """
    limits.check(samples=samples, seed=seed)
    choose("proposal", proposal, PROPOSALS)
    if not candidates:
        raise UserError("candidates: expected at least one, got none")
    if not run.model.is_adapted:
        hint = "all contexts give a text the same probability; use an adapted run"
        raise UserError(f"{run.folder.name} is not adapted: {hint}")
    sampled = draw_samples(run, samples, seed, proposal) if samples else None
    columns = [_encode_candidate(run, candidate) for candidate in candidates]
    result = np.zeros((len(corpus), len(candidates)))
    others = _other_values(run, corpus, candidates[0])
    is_shared = not (corpus.bags or corpus.vectors) and len(np.unique(others, axis=0)) == 1
    shared = None
    bar = progress_bar(total=result.size, desc="classifying", unit="likelihoods", show=progress)
    with bar, run.scoring():
        if is_shared:  # texts differ in the candidates' variables only, so each candidate is conditioned on once
            context = corpus.context(np.zeros(1, dtype=np.int64)).to(run.device)
            shared = run.model.condition(_candidate_contexts(context, columns))
        for rows in corpus.batches(max(1, MAX_BATCH_TOKENS // min(len(candidates), 64))):
            batch = run.batch(corpus, rows)
            width = max(1, MAX_BATCH_TOKENS // (batch.tokens.shape[1] * len(rows)))  # candidates per batch
            for begin in range(0, len(columns), width):
                part = columns[begin : begin + width]
                indices = torch.arange(begin, begin + len(part), device=run.device)
                conditioning = shared.select(indices) if shared else None
                result[rows, begin : begin + width] = -_candidate_nats(run, batch, part, conditioning, sampled)
                bar.update(len(rows) * len(part))
    return result


def draw_samples(run: Run, count: int, seed: int = 0, proposal: str = "rank") -> Samples:
    """Draw `count` tokens of the vocabulary with replacement.

    Raises a `UserError` for the proposal "unigram" if the run has no saved token counts.
    """
    memory.check(24 * count, f"{count:,} samples")  # 24 bytes per sample
    if proposal == "unigram":
        counts = run.unigram_counts().clamp(min=1)  # a token that was never a target has count 1
        counts[run.tokenizer.specials.start] = 0
        distribution = Proposal(counts, count, run.device)
    else:
        distribution = Proposal.by_rank(run.tokenizer, count, run.device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return distribution.draw()


def _candidate_nats(
    run: Run,
    batch: Batch,
    columns: list[tuple[Tensor, Tensor]],
    conditioning: Conditioning | None,
    samples: Samples | None,
) -> Floats:
    """Return the nats (B, K) of B texts given each of K candidates, computed as one batch of B * K texts."""
    texts, count = len(batch.rows), len(columns)
    context_of = torch.arange(count, device=run.device).repeat(texts)
    contexts = _candidate_contexts(batch.context, columns)
    if conditioning is None:
        distinct, context_of = contexts.distinct()
        conditioning = run.model.condition(distinct)
    repeated = torch.arange(texts, device=run.device).repeat_interleave(count)
    repeated_batch = Batch(batch.tokens[repeated], batch.lengths[repeated], contexts, batch.rows[repeated])
    per_text = conditioning.select(context_of)
    if samples is None:
        nats = run.model(repeated_batch, per_text)
    else:
        nats = run.model.sampled_nats(repeated_batch, samples, conditioning=per_text)
    summed: Floats = nats.double().sum(1).view(texts, count).cpu().numpy()
    return summed


def _encode_candidate(run: Run, candidate: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the categories (C,) and numbers (N,) of a candidate, with -2 and infinity for variables that it lacks."""
    categories = torch.full((len(run.schema.categories),), -2)
    numbers = torch.full((len(run.schema.numbers),), torch.inf)
    for name, value in candidate.items():
        variable = run.schema.variable(name)
        if variable.kind == "category":
            category = category_name(value)
            _check_value(run, variable, category, variable.values)
            categories[run.schema.categories.index(variable)] = variable.values.index(category)
        elif variable in run.schema.numbers:
            number = to_number(value)
            if number is None:
                raise UserError(f"{name}: expected a number, got {value!r}")
            numbers[run.schema.numbers.index(variable)] = number % variable.period if variable.period else number
        else:
            raise UserError(f"{name}: expected a category or a number, got a variable of kind {variable.kind}")
    return categories.to(run.device), numbers.to(run.device)


def _candidate_contexts(context: Context, columns: list[tuple[Tensor, Tensor]]) -> Context:
    """Return B * K contexts: for each of B texts in turn, its context with the values of each of K candidates."""
    categories = torch.stack([column[0] for column in columns]).repeat(len(context), 1)
    numbers = torch.stack([column[1] for column in columns]).repeat(len(context), 1)
    rows = torch.arange(len(context), device=categories.device)
    repeated_contexts = context.select(rows.repeat_interleave(len(columns)))
    return replace(
        repeated_contexts,
        categories=torch.where(categories == -2, repeated_contexts.categories, categories),
        numbers=torch.where(numbers == torch.inf, repeated_contexts.numbers, numbers),
    )


def _other_values(run: Run, corpus: Corpus, candidate: Mapping[str, Any]) -> NDArray[Any]:
    """Return the categories and numbers of all texts for the variables that a candidate lacks, one row per text."""
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

    A text need not have a true value of the variable. It is cut after `max_tokens` tokens, as in training.

    Args:
        run: An adapted run.
        source: The texts, with the other context columns of the run.
        target: The name of the variable.
        values: The candidates; by default all values of the variable. The metrics omit texts with other values.
        distractors: Values that are not candidates, whose texts count as negatives in the AUC.
        priors: "uniform" or "training" (the frequencies in training); `Classification.with_priors` accepts others.
        unknown: How to read context values that training never saw: "error" (raise), "group" (as the unknown value) or
            "expected" (as the expected value).
        samples: The number of tokens that are sampled from the vocabulary for the softmax; 0 computes the exact one.
        seed: The seed of the sample.
        proposal: The distribution to sample from: "unigram" (training frequencies) or "rank" (vocabulary ranks).
        calibrate: A table of texts with true values, on which the temperature of the posterior is fitted.
        progress: Whether to show a progress bar.

    Returns:
        The classification; its metrics are NaN if no text has a true value.

    Raises:
        UserError: There are fewer than two candidates, or no text of `calibrate` has a candidate as true value.

    References:
        Jaech and Ostendorf, TACL 2018, equation 7.
    """
    if run.schema.variable(target) in run.schema.numbers:
        raise UserError(f"{target}: expected a category, got a number; classify it by named points (--points)")
    variable = category_variable(run.schema, target)
    names = distinct_category_names(values, "values") or list(variable.values[1:])
    distractors = distinct_category_names(distractors, "distractors")
    for name in names:
        _check_value(run, variable, name, variable.values[1:])
    if (count := len({*names, *distractors})) < 2:
        raise UserError(f"{target}: expected at least two candidates, got {count}")
    if calibrate is not None:
        require_labels(calibrate, variable, names, run.config.data, "the temperature is fitted on texts with a value")
    choose("priors", priors, PRIORS)
    frequencies = variable.counts_by_value
    options: Any = {"samples": samples, "seed": seed, "proposal": proposal, "progress": progress}
    uniform = _classify_uniformly(run, source, target, names, distractors, unknown, options)
    dev = None if calibrate is None else _classify_uniformly(run, calibrate, target, names, (), unknown, options)

    def with_priors(weights: Mapping[str, float] | None) -> Classification:
        result = uniform if weights is None else uniform.with_priors(weights)
        if dev is None:
            return result
        weighted_dev = dev if weights is None else dev.with_priors(weights)
        return result.at_temperature(weighted_dev.fitted_temperature())

    if priors == "training":
        return with_priors(frequencies)
    result = with_priors(None)
    if not any(frequencies[name] for name in names):
        return result
    return replace(result, training_prior_predictions=with_priors(frequencies).predicted)


def _classify_uniformly(
    run: Run,
    source: Any,
    target: str,
    names: Sequence[str],
    distractors: Sequence[str],
    unknown: str,
    options: Mapping[str, Any],
) -> Classification:
    """Classify the texts of a table with a uniform prior at temperature 1."""
    corpus = run.prepare(source, unknown=unknown, optional=(target,), progress=options["progress"])
    column = run.schema.variable(target).source_column
    truth = _read_category_names(source, column) if column in open_table(source).columns else [None] * len(corpus)
    likelihoods = log_likelihoods(run, corpus, [{target: name} for name in names], **options)
    missing = np.array([name is None for name in truth], dtype=bool)
    result = apply_bayes_rule(names, likelihoods, corpus.lengths, truth, distractors, corpus.truncated)
    return replace(result, is_missing=missing, key=texts_digest(corpus, target, *names))


def _check_value(run: Run, variable: Variable, name: str, valid: Sequence[str]) -> None:
    """Raise a `UserError` unless `name` is one of the `valid` values; its message does not list names of users."""
    if variable.source_column != run.config.data.user:
        choose(f"value of {variable.name}", name, valid)
    elif name not in valid:
        raise UserError(f"unknown value of {variable.name} {name!r}; the run has {len(variable.values) - 1:,} values")


def category_variable(schema: ContextSchema, target: str) -> Variable:
    """Return the variable `target`; raise a `UserError` unless it is a category."""
    variable = schema.variable(target)
    if variable.kind != "category":
        raise UserError(f"{target}: expected a category, got a variable of kind {variable.kind}")
    return variable


def require_labels(source: Any, variable: Variable, names: Sequence[str], config: DataConfig, reason: str) -> None:
    """Raise a `UserError` unless at least one text of `source` has one of the values `names` of `variable`.

    `reason` says why the caller needs true values; it ends the message.
    """
    table = open_table(source)
    if variable.source_column not in table.columns:
        raise UserError(f"{table.missing_column_error(variable.source_column).message}; {reason}")
    if set(names).isdisjoint(_read_category_names(source, variable.source_column)):
        values = f"any of {len(names):,} users" if variable.source_column == config.user else format_names(names)
        raise UserError(f"{table.name}: no text has a candidate value of {variable.name} ({values}); {reason}")


def _read_category_names(source: Any, column: str) -> list[str | None]:
    """Return the value of each row of a table in `column`, None where it is missing."""
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

    The true point of a text is the point nearest to the text's own coordinates. Distances are great-circle distances in
    km if the two variables are latitude and longitude. Otherwise they are Euclidean distances in standard deviations;
    differences of a periodic variable are taken along the shorter arc.

    Args:
        run: An adapted run.
        source: The texts.
        points: A dict from variable to value for each name, such as `{"Oslo": {"lat": 59.9, "lon": 10.7}}`.
        within: The maximum distance of a text to its true point. The metrics omit texts that are farther from all
            points, and texts without coordinates.
        truth: The names of the true points (B,), None where unknown; by default the nearest points.
        unknown: How to read context values that training never saw: "error" (raise), "group" (as the unknown value) or
            "expected" (as the expected value).
        samples: The number of tokens that are sampled from the vocabulary for the softmax; 0 computes the exact one.
        seed: The seed of the sample.
        proposal: The distribution to sample from: "unigram" (training frequencies) or "rank" (vocabulary ranks).
        progress: Whether to show a progress bar.

    Returns:
        The classification.

    Raises:
        UserError: There are no points, or the points do not all have values of the same numeric variables of the run.
    """
    limits.check(within=within)
    if not points:
        raise UserError("points: expected at least one, got none")
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
        coordinates = np.array([[float(point[variable]) for variable in variables] for point in candidates])
        distances = point_distances(texts, coordinates, variables, run)
        nearest = zip(distances.argmin(1), distances.min(1), strict=True)
        truth = [names[point] if distance <= within else None for point, distance in nearest]
    result = apply_bayes_rule(names, likelihoods, corpus.lengths, truth, truncated=corpus.truncated)
    return replace(result, key=texts_digest(corpus, *names))


def point_distances(texts: Floats, points: Floats, variables: Sequence[str], run: Run) -> Floats:
    """Return the distances (B, K) from `texts` (B, N) to `points` (K, N) as `classify_points` defines them."""
    if [name[:3].lower() for name in variables] == ["lat", "lon"]:
        return great_circle_distances(texts, points)
    schema_variables = [run.schema.variable(name) for name in variables]
    period = np.array([variable.period or math.inf for variable in schema_variables])
    gap = np.abs(texts[:, None] - points[None]) % period
    scaled: Floats = np.minimum(gap, period - gap) / np.array([variable.deviation for variable in schema_variables])
    distances: Floats = np.sqrt((scaled**2).sum(-1))
    return distances


def great_circle_distances(first: Floats, second: Floats) -> Floats:
    """Return the great-circle distances (B, K) in km of `first` (B, 2) and `second` (K, 2), in degrees (lat, lon)."""
    a, b = np.radians(first)[:, None], np.radians(second)[None]
    haversines = np.sin((a - b) / 2) ** 2
    haversine_of_angle = haversines[..., 0] + np.cos(a[..., 0]) * np.cos(b[..., 0]) * haversines[..., 1]
    result: Floats = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.minimum(1.0, haversine_of_angle)))
    return result

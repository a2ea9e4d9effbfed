"""Generative classification: choose the context that maximizes p(text given context) p(context) (TACL 2018, eq. 7).

Candidates are the values of a categorical variable, or named points of numeric variables, such as cities.
Shapes: B texts, K candidates, N numeric variables.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from factorcell.config import DataConfig
from factorcell.data.columns.rows import (
    category_names,
    distinct_category_names,
    key_by_category_name,
    to_rows,
    to_texts,
)
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.columns.values import category_name, category_name_or_none, to_number
from factorcell.data.corpus import Corpus
from factorcell.data.tables.chunks import format_names
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError, check_choice
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.bayes_rule import (
    CONTEXT_CLASSIFIER,
    LIKELIHOOD,
    LINEAR_BASELINE,
    Classification,
    apply_bayes_rule,
    value_nats,
)
from factorcell.evaluation.diagnostics import report_evaluation
from factorcell.evaluation.likelihoods import check_adapted, check_value, log_likelihoods
from factorcell.evaluation.linear_classifier import BASELINES_FILE, PRIORS_FILE, LinearClassifier
from factorcell.evaluation.text_figures import texts_digest
from factorcell.options import limits
from factorcell.options.limits import PRIORS
from factorcell.runs.run import Run

Floats = NDArray[np.float64]
ACCURACY_REASON = "the accuracy is computed over texts with a value"
CALIBRATION_REASON = "the temperature is fitted on texts with a value"
EARTH_RADIUS = 6371.0088  # km


def classify(
    run: Run,
    source: Any,
    target: str,
    *,
    values: Sequence[Any] = (),
    priors: str = "conditional",
    unknown: str = "group",
    samples: int = 0,
    proposal: str = "rank",
    calibrate: Any = None,
    combine: bool = False,
) -> Classification:
    """Classify texts by the values of a categorical variable.

    Texts are cut after `max_tokens` tokens, as in training.

    Args:
        run: An adapted run.
        source: The texts, with the other context columns of the run; a text need not have a true value.
        target: The name of the variable.
        values: The candidates; by default all values of the variable. The metrics omit texts with other values.
        priors: "conditional" (given the other context of each text, as estimated in training), "training" (the
            frequencies in training) or "uniform". If `source` has no other context column, or the run has no
            conditional prior, "conditional" means "training". `Classification.with_priors` accepts other priors.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        samples: The number of tokens sampled from the vocabulary for the softmax; 0 computes the exact softmax.
        proposal: The distribution to sample from: "unigram" (training frequencies) or "rank" (vocabulary ranks).
        calibrate: A table of held-out texts with true values, on which the temperature or the combination is fitted.
        combine: Whether to combine the model with the linear baseline of the run.

    Returns:
        The classification. Its `other_predictions` are those with all priors at temperature 1, of the conditional prior
        alone, and of the linear baseline of the run. Its metrics are NaN if no text has a true value.

    Raises:
        UserError: The run is not adapted, there are fewer than two candidates, `calibrate` has no text with a
            candidate, or `combine` lacks `calibrate` or a linear baseline.

    References:
        Jaech and Ostendorf, TACL 2018, equation 7.
    """
    check_choice("priors", priors, PRIORS)
    check_adapted(run)
    variable = category_variable(run.schema, target)
    names = _candidate_names(run, variable, values)
    classifiers = {LINEAR_BASELINE: linear_classifier.load(run.folder / BASELINES_FILE, run.schema).get(target)}
    if calibrate is not None:
        require_labels(calibrate, variable, names, run.config.data, CALIBRATION_REASON)
    if combine:
        _check_combination(run, target, calibrate, classifiers[LINEAR_BASELINE])
    tables = [source] if calibrate is None else [source, calibrate]
    corpora = [run.prepare(table, unknown=unknown, optional=(target,)) for table in tables]
    report_evaluation(run, corpora[0])
    if (prior := _conditional_prior(run, target, source)) is not None:
        prior.report_dependence(corpora[0])
    elif priors == "conditional":
        priors = "training"
    classifiers["conditional"] = prior
    results, *held_out = (
        _classify_texts(run, table, corpus, variable, names, classifiers, {"samples": samples, "proposal": proposal})
        for table, corpus in zip(tables, corpora, strict=True)
    )
    result = results[priors]
    if held_out and combine:
        result = _combine(results, held_out[0], priors)
    elif held_out:
        result = result.at_temperature(held_out[0][priors].fitted_temperature())
    others, linear = _other_predictions(result, results), classifiers[LINEAR_BASELINE]
    if linear is not None:
        others[_describe_baseline(linear, source)] = others.pop(LINEAR_BASELINE)
    return replace(result, other_predictions=others)


def _describe_baseline(linear: LinearClassifier, source: Any) -> str:
    """Return the name of a linear baseline, with the columns that a table lacks, and the share of texts if not all."""
    columns, name = dict.fromkeys(other.source_column for other in linear.others), LINEAR_BASELINE
    if absent := [column for column in columns if column not in _columns(source)]:
        name += f" without {', '.join(absent)}"
    percent = min(99, math.ceil(100 * linear.read_share))
    return name if linear.read_share == 1 else f"{name}, fitted to {percent} % of the texts"


def _classify_texts(
    run: Run,
    source: Any,
    corpus: Corpus,
    variable: Variable,
    names: tuple[str, ...],
    classifiers: Mapping[str, LinearClassifier | None],
    sampling: dict[str, Any],
) -> dict[str, Classification]:
    """Return the classifications of the texts of a table by the model with each prior, and by the linear baseline."""
    likelihoods = log_likelihoods(run, corpus, [{variable.name: name} for name in names], **sampling)
    has_values = variable.source_column in _columns(source)
    truth = _read_category_names(source, variable.source_column) if has_values else [None] * len(corpus)
    result = apply_bayes_rule(names, likelihoods, truth, corpus.truncated)
    uniform = replace(result, key=texts_digest(corpus, variable.name, *names), samples=sampling["samples"])
    results = {}
    if (prior := classifiers["conditional"]) is not None:
        results["conditional"] = uniform.with_log_prior(prior.candidate_log_probs(corpus, names), "conditional")
    results["training"] = uniform.with_log_prior(linear_classifier.training_log_prior(variable, names), "training")
    results["uniform"] = uniform
    if (linear := classifiers[LINEAR_BASELINE]) is not None:
        results[LINEAR_BASELINE] = replace(uniform, log_posterior=linear.candidate_log_probs(corpus, names))
    return results


def _other_predictions(result: Classification, results: Mapping[str, Classification]) -> dict[str, NDArray[np.int64]]:
    """Return the predictions by names of the model with the same and other priors, and of the linear classifiers."""
    models = {name: model for name, model in results.items() if name != LINEAR_BASELINE}
    others = {model.name: model.predicted for model in (results[result.priors], *models.values())}
    if (conditional := results.get("conditional")) is not None and conditional.log_prior is not None:
        others[CONTEXT_CLASSIFIER] = conditional.log_prior.argmax(1)
    if LINEAR_BASELINE in results:
        others[LINEAR_BASELINE] = results[LINEAR_BASELINE].predicted
    return {name: predicted for name, predicted in others.items() if name != result.name}


def _check_combination(run: Run, target: str, calibrate: Any, baseline: LinearClassifier | None) -> None:
    """Check that there are texts on which the weights of the combination are fitted, and a linear baseline."""
    if calibrate is None:
        problem = "expected a table of held-out texts with values, on which its weights are fitted, got none"
        raise UserError(f"combination: {problem}; add --calibrate DEV (in Python: calibrate)")
    if baseline is None:
        raise UserError(f"combination: {linear_classifier.missing_baseline(run, target)}")


def _conditional_prior(run: Run, target: str, source: Any) -> LinearClassifier | None:
    """Return the prior of the target given the other context columns of `source`, if the run has one for them."""
    prior, columns = linear_classifier.load(run.folder / PRIORS_FILE, run.schema).get(target), _columns(source)
    return prior if prior and any(other.source_column in columns for other in prior.others) else None


def _candidate_names(run: Run, variable: Variable, values: Sequence[Any]) -> tuple[str, ...]:
    names = tuple(distinct_category_names(values, "values") or variable.values[1:])
    for name in names:
        check_value(run, variable, name, variable.values[1:])
    if len(names) < 2:
        raise UserError(f"{variable.name}: expected at least two values, got {len(names)}")
    return names


def classify_points(
    run: Run,
    source: Any,
    points: Mapping[Any, Mapping[str, float]],
    *,
    within: float = math.inf,
    truth: Sequence[Any] | None = None,
    unknown: str = "group",
) -> Classification:
    """Classify texts by named points of numeric variables, such as cities.

    If the variables are a latitude and a longitude, the true point of a text is the point nearest to its coordinates.

    Args:
        run: An adapted run.
        source: The texts.
        points: A dict from variable to value for each name, such as `{"Oslo": {"lat": 59.9, "lon": 10.7}}`.
        within: The maximum distance in km of a text to its true point. The metrics omit texts that are farther from
            all points, and texts without coordinates.
        truth: The names of the true points (B,), None where unknown; by default the nearest points.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Returns:
        The classification.

    Raises:
        UserError: There are no points, or the points do not all have values of the same numeric variables.
    """
    [within] = limits.check(within=within)
    if not points:
        raise UserError("points: expected at least one, got none")
    points = key_by_category_name(points, "points")
    variables = tuple(next(iter(points.values())))
    for name in variables:
        check_choice("numeric context variable", name, [variable.name for variable in run.schema.numbers])
    for name, point in points.items():
        if set(point) != set(variables):
            raise UserError(f"point {name!r}: expected {', '.join(variables)}, got {', '.join(point) or 'nothing'}")
    corpus = run.prepare(source, unknown=unknown, optional=variables)
    report_evaluation(run, corpus)
    truth = None if truth is None else category_names(truth, "truth", len(corpus))
    names, candidates = list(points), list(points.values())
    likelihoods = log_likelihoods(run, corpus, candidates)
    by_name = {name[:3].lower(): name for name in variables}
    if truth is None and len(variables) == 2 and by_name.keys() == {"lat", "lon"}:
        variables = (by_name["lat"], by_name["lon"])
        columns = [run.schema.numbers.index(run.schema.variable(name)) for name in variables]
        coordinates = np.array([[float(point[variable]) for variable in variables] for point in candidates])
        distances = great_circle_distances(corpus.numbers[:, columns].astype(np.float64), coordinates)
        nearest_points = zip(distances.argmin(1), distances.min(1), strict=True)
        truth = [names[index] if distance <= within else None for index, distance in nearest_points]
    truth = [None] * len(corpus) if truth is None else truth
    result = apply_bayes_rule(names, likelihoods, truth, corpus.truncated)
    return replace(result, key=texts_digest(corpus, *names))


def read_points(path: str | Path) -> dict[str, dict[str, float]]:
    """Read named points, as for `classify_points`, from a table with a column `name` and numeric context columns."""
    rows = to_rows(path)
    columns = [column for column in (rows[0] if rows else ()) if column != "name"]
    if not columns or "name" not in rows[0]:
        raise UserError(f"{path}: expected rows with a column `name` and numeric columns, got {', '.join(columns)}")
    points: dict[str, dict[str, float]] = {}
    for row in rows:
        point = points[category_name(row["name"])] = {}
        for column in columns:
            number = to_number(row[column])
            if number is None:
                raise UserError(f"{path}: {column} of {row['name']} is not a number")
            point[column] = number
    if len(points) < len(rows):
        raise UserError(f"{path}: expected each name once, got {len(rows):,} rows with {len(points):,} names")
    return points


def great_circle_distances(first: Floats, second: Floats) -> Floats:
    """Return the great-circle distances (B, K) in km from `first` (B, 2) to `second` (K, 2), in degrees (lat, lon)."""
    (first_lat, first_lon), (second_lat, second_lon) = np.radians(first).T, np.radians(second).T
    lat_haversines = np.sin((first_lat[:, None] - second_lat) / 2) ** 2
    lon_haversines = np.sin((first_lon[:, None] - second_lon) / 2) ** 2
    angle_haversines = lat_haversines + np.cos(first_lat)[:, None] * np.cos(second_lat) * lon_haversines
    result: Floats = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.minimum(1.0, angle_haversines)))
    return result


def _columns(source: Any) -> tuple[str, ...]:
    return () if to_texts(source) is not None else open_table(source).columns


def _combine(
    results: Mapping[str, Classification], held_out: Mapping[str, Classification], priors: str
) -> Classification:
    """Combine the likelihood of the model, a prior and the posterior of the linear baseline.

        p(v | text, o) ~ p(text | v, o)^(a / T)  p(v | o)^b  q(v | text, o)^c

    The temperature T, and then the weights a, b and c, are fitted on held-out texts. A uniform prior has no weight.
    """
    temperature, is_labelled = held_out["uniform"].fitted_temperature(), held_out["uniform"].truth >= 0

    def log_probs(results: Mapping[str, Classification]) -> dict[str, Floats]:
        terms = {LIKELIHOOD: results["uniform"].at_temperature(temperature).log_posterior}
        if (log_prior := results[priors].log_prior) is not None:
            terms[f"{priors} prior"] = np.broadcast_to(log_prior, terms[LIKELIHOOD].shape)
        return {**terms, LINEAR_BASELINE: results[LINEAR_BASELINE].log_posterior}

    held_out_terms = {name: term[is_labelled] for name, term in log_probs(held_out).items()}
    weights = fit_combination(held_out_terms, held_out["uniform"].truth[is_labelled])
    terms = log_probs(results)
    log_posterior = log_softmax(sum(weight * terms[name] for name, weight in weights.items()), axis=1)
    return replace(results["uniform"], log_posterior=log_posterior, priors=priors, combination_weights=weights)


def fit_combination(log_probs: Mapping[str, Floats], truth: NDArray[np.int64]) -> dict[str, float]:
    """Return the weight of each log probability (B, K) of texts with the true candidates `truth` (B,)."""
    from scipy.optimize import minimize

    arrays = np.stack(list(log_probs.values()), axis=-1)  # (B, K, terms)

    def loss(weights: Floats) -> float:
        return value_nats(log_softmax(arrays @ weights, axis=1), truth) + float(weights @ weights) / (2 * len(truth))

    result = minimize(loss, np.full(len(log_probs), 1 / len(log_probs)), tol=1e-8)
    return dict(zip(log_probs, result.x.tolist(), strict=True))


def category_variable(schema: ContextSchema, target: str) -> Variable:
    """Return the variable `target`; raise a `UserError` unless it is a category."""
    variable = schema.variable(target)
    if variable.kind == "category":
        return variable
    column = variable.source_column
    remedy = f"to predict its values (no lists), train with --context {column}:category"
    if variable in schema.numbers:
        remedy += "; to choose the nearest of named points, such as cities, use --points TABLE"
    raise UserError(f"{target}: expected a category, got a variable of kind {variable.kind}; {remedy}")


def require_labels(source: Any, variable: Variable, names: Sequence[str], config: DataConfig, reason: str) -> None:
    """Raise a `UserError` unless at least one text of `source` has one of the values `names` of `variable`."""
    table = open_table(source)
    if variable.source_column not in table.columns:
        raise UserError(f"{table.missing_column_error(variable.source_column).message}; {reason}")
    if set(names).isdisjoint(_read_category_names(table, variable.source_column)):
        description = f"any of {len(names):,} users" if variable.source_column == config.user else format_names(names)
        raise UserError(f"{table.name}: no text has a candidate value of {variable.name} ({description}); {reason}")


def _read_category_names(source: Any, column: str) -> list[str | None]:
    return [category_name_or_none(value) for chunk in open_table(source).chunks([column]) for value in chunk[column]]

"""Generative classification by named points of numeric variables, such as cities (TACL 2018, section 4.3).

Shapes: B texts, K points, N numeric variables.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.columns.rows import category_names, key_by_category_name
from factorcell.errors import UserError, check_choice
from factorcell.evaluation.bayes_rule import Classification, apply_bayes_rule
from factorcell.evaluation.diagnostics import report_repeated_texts, report_run
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.evaluation.text_figures import texts_digest
from factorcell.options import limits
from factorcell.runs.run import Run

Floats = NDArray[np.float64]
EARTH_RADIUS = 6371.0088  # km


def classify_points(
    run: Run,
    source: Any,
    points: Mapping[Any, Mapping[str, float]],
    *,
    within: float = math.inf,
    truth: Sequence[Any] | None = None,
    unknown: str = "group",
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
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
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        samples: The number of tokens sampled from the vocabulary for the softmax; 0 computes the exact softmax.
        seed: The seed of the sample.
        proposal: The distribution to sample from: "unigram" (training frequencies) or "rank" (vocabulary ranks).

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
    report_repeated_texts(run, corpus)
    report_run(run)
    truth = None if truth is None else category_names(truth, "truth", len(corpus))
    names, candidates = list(points), list(points.values())
    likelihoods = log_likelihoods(run, corpus, candidates, samples=samples, seed=seed, proposal=proposal)
    if truth is None:
        columns = [run.schema.numbers.index(run.schema.variable(name)) for name in variables]
        text_coordinates = corpus.numbers[:, columns].astype(np.float64)
        point_coordinates = np.array([[float(point[variable]) for variable in variables] for point in candidates])
        distances = point_distances(text_coordinates, point_coordinates, variables, run)
        nearest_points = zip(distances.argmin(1), distances.min(1), strict=True)
        truth = [names[index] if distance <= within else None for index, distance in nearest_points]
    result = apply_bayes_rule(names, likelihoods, truth, truncated=corpus.truncated)
    return replace(result, key=texts_digest(corpus, *names), samples=samples)


def point_distances(texts: Floats, points: Floats, variables: Sequence[str], run: Run) -> Floats:
    """Return the distances (B, K), as defined in `classify_points`, from `texts` (B, N) to `points` (K, N)."""
    if [name[:3].lower() for name in variables] == ["lat", "lon"]:
        return great_circle_distances(texts, points)
    schema_variables = [run.schema.variable(name) for name in variables]
    periods = np.array([variable.period or math.inf for variable in schema_variables])
    differences = np.abs(texts[:, None] - points[None]) % periods
    deviations = np.array([variable.deviation for variable in schema_variables])
    scaled: Floats = np.minimum(differences, periods - differences) / deviations
    distances: Floats = np.sqrt((scaled**2).sum(-1))
    return distances


def great_circle_distances(first: Floats, second: Floats) -> Floats:
    """Return the great-circle distances (B, K) in km from `first` (B, 2) to `second` (K, 2), in degrees (lat, lon)."""
    (first_lat, first_lon), (second_lat, second_lon) = np.radians(first).T, np.radians(second).T
    lat_haversines = np.sin((first_lat[:, None] - second_lat) / 2) ** 2
    lon_haversines = np.sin((first_lon[:, None] - second_lon) / 2) ** 2
    angle_haversines = lat_haversines + np.cos(first_lat)[:, None] * np.cos(second_lat) * lon_haversines
    result: Floats = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.minimum(1.0, angle_haversines)))
    return result

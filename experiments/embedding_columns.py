"""Columns outside a model on the embeddings of its values: agreement of neighbours, principal axes, ellipses of groups.

Shapes: N values, k embedding.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.columns.columns import parse_column
from factorcell.data.columns.values import category_name, is_missing, to_number
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError, check_choice
from factorcell.evaluation.explaining.embeddings import Embeddings, similarities
from factorcell.options import limits

HALF_AXIS = 1.5  # half axes of an ellipse in standard deviations (TACL 2018, figure 6)
MIN_VALUES = 3  # minimum number of values for a map, an ellipse and the agreement of neighbours
MAX_PAIRS = 1 << 22  # maximum number of pairs of values that are compared at once
VALUE_COLUMN_KINDS = ("category", "number")

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ValueColumn:
    """A column of a table with one entry for each value of a variable.

    A column of groups has `names` (N,), None where missing; a column of numbers has `numbers` (N,), NaN where missing.
    """

    name: str
    names: tuple[str | None, ...] = ()
    numbers: Floats | None = None

    @property
    def known_indices(self) -> NDArray[np.int64]:
        """The indices of the values with an entry."""
        has_entry = [name is not None for name in self.names] if self.numbers is None else np.isfinite(self.numbers)
        return np.flatnonzero(has_entry)


def read_column(embeddings: Embeddings, source: Any, column: str) -> ValueColumn:
    """Aggregate `column` of a table over the rows of each value: the mean of numbers, or the most frequent name.

    `column` may state its kind: NAME:number or NAME:category. Raises a `UserError` if no row of the table has one of
    the values.
    """
    name, kind, _ = parse_column(column)
    check_choice("kind of column to colour or predict by", kind or "number", VALUE_COLUMN_KINDS)
    table = open_table(source)
    entries_by_value: dict[str, Counter[str]] = {}  # value -> entries with their counts
    for chunk in table.chunks([embeddings.source, name]):
        for value, entry in zip(chunk[embeddings.source], chunk[name], strict=True):
            if not is_missing(value) and not is_missing(entry):
                entries_by_value.setdefault(category_name(value), Counter())[category_name(entry)] += 1
    known_entries = {value: entries_by_value[value] for value in embeddings.values if value in entries_by_value}
    if not known_entries:
        raise UserError(f"{table.name}: no row has {name} and a value of {embeddings.source} that the run knows")
    means = {value: _mean(entries) for value, entries in known_entries.items()}
    is_numeric = kind == "number" or (
        kind is None and None not in means.values()
    )  # the default if all entries are numbers
    if not is_numeric:
        most_frequent = {value: _most_frequent(entries) for value, entries in known_entries.items()}
        return ValueColumn(name, tuple(map(most_frequent.get, embeddings.values)))
    for value, mean in means.items():
        if mean is None:
            invalid = next(entry for entry in known_entries[value] if to_number(entry) is None)
            raise UserError(f"{table.name}: {name} of {value!r} is {invalid!r}, not a number")
    return ValueColumn(
        name, numbers=np.array([means.get(value, math.nan) for value in embeddings.values], dtype=np.float64)
    )


def _most_frequent(entries: Counter[str]) -> str:
    ((entry, _),) = entries.most_common(1)
    return entry


def _mean(entries: Counter[str]) -> float | None:
    """Return the mean of entries, weighted by their counts; None if any entry is not a number."""
    total = 0.0
    for entry, count in entries.items():
        number = to_number(entry)
        if number is None:
            return None
        total += number * count
    return total / entries.total()


def project_to_plane(vectors: Floats) -> tuple[Floats, Floats]:
    """Project `vectors` (N, k) to their first two principal axes; return points (N, 2) and shares of variance (2,).

    Principal axes have no sign; scikit-learn makes the component of an axis that is largest in absolute value positive.
    """
    from sklearn.decomposition import PCA

    if vectors.shape[0] < MIN_VALUES or vectors.shape[1] < 2:
        actual = f"{vectors.shape[0]} of size {vectors.shape[1]}"
        raise UserError(f"map: expected at least {MIN_VALUES} embeddings of size 2 or more, got {actual}")
    analysis = PCA(2, svd_solver="full")
    points: Floats = analysis.fit_transform(vectors)
    return points, np.nan_to_num(analysis.explained_variance_ratio_)


def map_points(embeddings: Embeddings, column: ValueColumn) -> list[Row]:
    """Project all embeddings to a plane; return a row for each value with an entry in `column`.

    A row has `value`, `count` (its training texts), the coordinates `x` and `y`, and its entry as `group` or `number`.
    """
    points, _ = project_to_plane(embeddings.vectors)
    rows: list[Row] = []
    for index in column.known_indices.tolist():
        x, y = points[index].tolist()
        row: Row = {"value": embeddings.values[index], "count": int(embeddings.counts[index]), "x": x, "y": y}
        row |= {"group": column.names[index]} if column.numbers is None else {"number": float(column.numbers[index])}
        rows.append(row)
    return rows


def fit_ellipses(rows: Sequence[Row], max_groups: int = 8) -> list[Row]:
    """Fit an ellipse to the points of each of the `max_groups` largest groups; return a row for each.

    A row has `group`, `count` (its points) and the centre `x`, `y`. The half axes are `HALF_AXIS` standard deviations
    long: `wide` lies in the direction `angle` (in degrees from the x axis), and `high` is perpendicular to it.
    """
    [max_groups] = limits.check(groups=max_groups)
    results: list[Row] = []
    for group, count in Counter(str(row["group"]) for row in rows).most_common():
        if count < MIN_VALUES or len(results) == max_groups:
            break
        group_points = np.array([(row["x"], row["y"]) for row in rows if row["group"] == group])
        variances, axes = np.linalg.eigh(np.cov(group_points.T))
        high, wide = (HALF_AXIS * np.sqrt(np.maximum(variances, 0.0))).tolist()
        direction_x, direction_y = axes[:, 1]  # of the axis with the larger variance
        angle = math.degrees(math.atan2(direction_y, direction_x)) % 180
        x, y = group_points.mean(0).tolist()
        results.append({"group": group, "count": count, "x": x, "y": y, "wide": wide, "high": high, "angle": angle})
    return results


def neighbour_agreement(embeddings: Embeddings, column: ValueColumn) -> Row:
    """Measure how well the entries of a value and of its nearest neighbour by cosine agree.

    The row has `column`, `values` (the number of values with an entry) and `measure`. For a column of groups, it has
    the number of `groups`, the share `same` of values whose neighbour is in the same group, and `chance`, the share of
    random pairs in the same group. For a column of numbers, it has the `correlation` of both entries.
    """
    indices = column.known_indices
    if len(indices) < MIN_VALUES:
        raise UserError(f"{column.name}: expected entries for at least {MIN_VALUES} values, got {len(indices)}")
    vectors, neighbours_of_parts = embeddings.vectors[indices], []
    part_count = 1 + len(indices) ** 2 // MAX_PAIRS
    for part in np.array_split(np.arange(len(indices)), part_count):
        cosines = similarities(vectors[part], vectors, "cosine")
        cosines[np.arange(len(part)), part] = -np.inf  # a value is not its own neighbour
        neighbours_of_parts.append(cosines.argmax(1))
    row = {"column": column.name, "values": len(indices), "measure": "cosine"}
    neighbours = np.concatenate(neighbours_of_parts)
    if column.numbers is not None:
        return row | {"correlation": _correlation(column.numbers[indices], column.numbers[indices][neighbours])}
    groups = np.array([column.names[index] for index in indices])
    group_sizes = np.unique(groups, return_counts=True)[1]
    chance = float((group_sizes * (group_sizes - 1)).sum() / (len(indices) * (len(indices) - 1)))
    return row | {"groups": len(group_sizes), "same": float((groups[neighbours] == groups).mean()), "chance": chance}


def _correlation(first: Floats, second: Floats) -> float:
    """Return Pearson's correlation, 0 if one side is constant."""
    return float(np.corrcoef(first, second)[0, 1]) if np.ptp(first) and np.ptp(second) else 0.0

"""Inspection of the learned embeddings of a context variable: neighbours, tokens, maps.

    shift(w) = log p(w | h = 0, c) - log p(w | h = 0, c')

is the change of the log probability of token w from context c' (by default the expected context) to context c, for a
hidden state h of zero. For this h, only the softmax bias depends on the context: the low-rank bias Q c of TACL 2018
(table 5) and all other adapted biases.

Shapes: N values, M selected values, k embedding, V vocabulary.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.adapters.adapters import weight_adapters
from factorcell.config import LOW_RANK_BIASES
from factorcell.data.columns.columns import parse_column
from factorcell.data.columns.values import category_name, is_missing, to_number
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError, check_choice, nearest_hint
from factorcell.options import limits
from factorcell.options.choices import EMBEDDING_MEASURES
from factorcell.runs.run import Run

HALF_AXIS = 1.5  # half axes of an ellipse in standard deviations (TACL 2018, figure 6)
MIN_VALUES = 3  # minimum number of values for a map, an ellipse and the agreement of neighbours
MAX_PAIRS = 1 << 22  # maximum number of pairs of values that are compared at once
VALUE_COLUMN_KINDS = ("category", "number")

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Embeddings:
    """The embeddings `vectors` (N, k) of the `values` of one variable, most frequent first, without the unknown value.

    `counts` (N,) are the numbers of training texts with each value, and `source` is the column that the variable reads.
    If the values are users (`are_users`), error messages do not suggest similar values.
    """

    variable: str
    source: str
    values: tuple[str, ...]
    counts: NDArray[np.int64]
    vectors: Floats
    are_users: bool = False

    @classmethod
    def from_run(cls, run: Run, variable: str = "", values: Sequence[str] = ()) -> "Embeddings":
        """Return the embeddings that a run has learned for a categorical `variable`.

        By default, the variable is the one that has the most of `values`; in case of a tie, the one with the most
        values in total.

        Raises:
            UserError: The run has no embeddings of categories, or all values of the variable are rare.
        """
        if run.model.encoder is None or not _has_embeddings(run):
            raise UserError(f"{run.folder}: the run has no embeddings of contexts, because {_missing_reason(run)}")
        categories = run.schema.categories
        if not categories:
            kinds = ", ".join(f"{candidate.name} ({candidate.kind})" for candidate in run.schema.variables)
            raise UserError(f"{run.folder}: expected a categorical context variable, got {kinds}")
        if variable:
            check_choice("categorical context", variable, [candidate.name for candidate in categories])
        value_names = set(map(category_name, values))
        chosen_variable = max(
            (candidate for candidate in categories if variable in ("", candidate.name)),
            key=lambda candidate: (len(value_names & set(candidate.values[1:])), len(candidate.values)),
        )
        if chosen_variable.is_all_rare:
            others = ", ".join(candidate.name for candidate in categories if not candidate.is_all_rare)
            remedy = f"choose another variable: {others}" if others else "train with a lower --min-context-count"
            problem = f"all values of {chosen_variable.name} are rare in training and share one embedding"
            raise UserError(f"{run.folder}: {problem}; {remedy}")
        table = run.model.encoder.tables[categories.index(chosen_variable)].detach().double().cpu().numpy()
        return cls(  # without the first value, which is the unknown value
            variable=chosen_variable.name,
            source=chosen_variable.source_column,
            values=chosen_variable.values[1:],
            counts=np.array(chosen_variable.counts[1:], dtype=np.int64),
            vectors=table[1:],
            are_users=chosen_variable.source_column == run.config.data.user,
        )

    def row(self, value: object) -> int:
        """Return the row of a value in `vectors`.

        Raises a `UserError` for an unknown value; its message suggests a similar value unless the values are users.
        """
        name = category_name(value)
        if name in self.values:
            return self.values.index(name)
        hint = "" if self.are_users else nearest_hint(name, self.values)
        raise UserError(
            f"{self.variable} {name!r} was never seen in training or is a rare value{hint}; "
            f"the run has {len(self.values):,} values"
        )

    def neighbours(self, values: Sequence[object], count: int = 10, measure: str = "cosine") -> list[Row]:
        """Return a row for each of the `count` nearest values of each of `values`.

        A row has `value`, the nearby value (`near`), the numbers of training texts of the value (`value_count`) and of
        the nearby value (`count`), and `cosine` or `distance`, depending on `measure`.
        """
        check_choice("measure", measure, EMBEDDING_MEASURES)
        [count] = limits.check(count=count)
        indices = [self.row(value) for value in values]
        similarities_of_values = _similarities(self.vectors[np.array(indices, dtype=np.int64)], self.vectors, measure)
        results: list[Row] = []
        for index, similarities in zip(indices, similarities_of_values, strict=True):
            by_similarity = np.argsort(-similarities, kind="stable").tolist()
            for other in [other for other in by_similarity if other != index][:count]:
                counts = {"value_count": int(self.counts[index]), "count": int(self.counts[other])}
                row = {"value": self.values[index], "near": self.values[other], **counts}
                similarity = float(similarities[other])  # the cosine, or minus the distance
                results.append({**row, measure: similarity if measure == "cosine" else -similarity})
        return results


def _has_embeddings(run: Run) -> bool:
    """Return whether an adapter or a low-rank softmax bias of a run reads the embeddings of values.

    Other softmax biases learn a coefficient for each value and token instead.
    """
    config = run.config.model
    return bool(weight_adapters(config) or set(config.output_bias) & set(LOW_RANK_BIASES))


def _missing_reason(run: Run) -> str:
    """Return why a run has no embeddings of contexts."""
    if run.model.prefix is not None:
        return "the context is read as a prefix"
    return "only the bias of each value is adapted" if run.model.encoder is not None else "the run is not adapted"


def _similarities(first: Floats, second: Floats, measure: str) -> Floats:
    """Return the similarities (M, N) of the vectors `first` (M, k) and `second` (N, k); larger is more similar.

    A similarity is the cosine, or minus the Euclidean distance if `measure` is "distance".
    """
    if measure == "cosine":
        first, second = (
            vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) for vectors in (first, second)
        )
        cosines: Floats = first @ second.T
        return cosines
    squared_distances: Floats = (first**2).sum(1)[:, None] - 2 * first @ second.T + (second**2).sum(1)
    return -np.sqrt(np.maximum(squared_distances, 0.0))


def bias_shift(
    run: Run, context: Mapping[str, Any], against: Mapping[str, Any] | None = None, *, unknown: str = "error"
) -> Floats:
    """Return how much the softmax bias of `context` raises the log probability of each token, in nats (V,).

    The module header defines this shift. `against` is the context to compare with. A column that a context lacks has
    the expected value. The shift of a token of probability 0 is 0.
    """
    head = run.model.head
    if not run.model.is_adapted or not run.config.model.output_bias:
        raise UserError(f"{run.folder}: the context does not change the softmax bias; train with --output-bias")
    log_probs = []
    with run.scoring():
        for values_by_column in (context, against or {}):
            corpus = run.read([""], [values_by_column], unknown=unknown)
            head_conditions = run.model.condition(run.batch(corpus, np.array([0])).context).head
            zero_state = run.model.embedding.new_zeros(1, run.model.backbone.size)
            (token_log_probs,) = head.log_probabilities(zero_state, head_conditions)
            log_probs.append(token_log_probs.double().cpu().numpy())
    is_possible = np.isfinite(log_probs).all(axis=0)  # a token of probability 0 has log probability -infinity
    first, second = (np.where(is_possible, token_log_probs, 0.0) for token_log_probs in log_probs)
    return first - second


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
        similarities = _similarities(vectors[part], vectors, "cosine")
        similarities[np.arange(len(part)), part] = -np.inf  # a value is not its own neighbour
        neighbours_of_parts.append(similarities.argmax(1))
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

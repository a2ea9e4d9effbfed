"""Inspection of the learned embeddings of a context variable: neighbours, tokens, maps, relations to other columns.

    shift(w) = log p(w | h = 0, c) - log p(w | h = 0, c')

is the change of the log probability of token w from context c' (by default the expected context) to context c, for a
hidden state h of zero. Only the softmax bias depends on the context here: the low-rank bias Q c of TACL 2018 (table 5)
and all other adapted biases.

Shapes: N values, M selected values, k embedding, V vocabulary.
"""

import importlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import limits
from factorcell.choices import EMBEDDING_MEASURES
from factorcell.config import LOW_RANK_BIASES, UserError, choose
from factorcell.data.columns import parse_column
from factorcell.data.tables import open_table
from factorcell.data.values import category_name, is_missing, to_number
from factorcell.limits import nearest_hint
from factorcell.model.adapters import weight_adapters
from factorcell.model.run import Run
from factorcell.progress import progress_bar

HALF_AXIS = 1.5  # half axes of an ellipse in standard deviations (TACL 2018, figure 6)
MIN_VALUES = 3  # minimum number of values for a map, an ellipse and the agreement of neighbours
FOLDS = 5  # of the cross-validation
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

        By default, the variable is the one that knows most of `values`; of several such variables, the one with the
        most values. Raises a `UserError` if the run has no embeddings of categories.
        """
        if run.model.encoder is None or not _has_embeddings(run):
            raise UserError(f"{run.folder}: the run has no embeddings of contexts, because {_missing_reason(run)}")
        categories = run.schema.categories
        if not categories:
            kinds = ", ".join(f"{candidate.name} ({candidate.kind})" for candidate in run.schema.variables)
            raise UserError(f"{run.folder}: expected a categorical context variable, got {kinds}")
        if variable:
            choose("categorical context", variable, [candidate.name for candidate in categories])
        names = set(map(category_name, values))
        best = max(
            (candidate for candidate in categories if variable in ("", candidate.name)),
            key=lambda candidate: (len(names & set(candidate.values[1:])), len(candidate.values)),
        )
        return cls(
            best.name,
            best.source_column,
            best.values[1:],
            np.array(best.counts[1:], dtype=np.int64),
            run.model.encoder.tables[categories.index(best)].detach().double().cpu().numpy()[1:],
            best.source_column == run.config.data.user,
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

        A row has `value`, the nearby value (`near`), the number of training texts of the nearby value (`count`), and
        `cosine` or `distance`, depending on `measure`.
        """
        choose("measure", measure, EMBEDDING_MEASURES)
        limits.check(count=count)
        rows = np.array([self.row(value) for value in values], dtype=np.int64)
        results: list[Row] = []
        for index, similarities in zip(rows, _similarities(self.vectors[rows], self.vectors, measure), strict=True):
            for other in [int(other) for other in np.argsort(-similarities, kind="stable") if other != index][:count]:
                row = {"value": self.values[index], "near": self.values[other], "count": int(self.counts[other])}
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
    """Return `shift` (V,) of the module header in nats: how much the softmax bias of `context` raises each token.

    `against` is the context to compare with. A column that a context lacks has its expected value. The shift of a token
    of probability 0 is 0.
    """
    head = run.model.head
    if not run.model.is_adapted or not run.config.model.output_bias:
        raise UserError(f"{run.folder}: the context does not change the softmax bias; train with --output-bias")
    log_probs = []
    with run.scoring():
        for columns in (context, against or {}):
            corpus = run.read([""], [columns], unknown=unknown)
            conditions = run.model.condition(run.batch(corpus, np.array([0])).context).head
            zero_state = run.model.embedding.new_zeros(1, run.model.backbone.size)
            log_probs.append(head.log_probabilities(zero_state, conditions)[0].double().cpu().numpy())
    is_possible = np.isfinite(log_probs[0]) & np.isfinite(log_probs[1])
    finite = [np.where(is_possible, values, 0.0) for values in log_probs]  # avoids infinity - infinity
    return np.where(is_possible, finite[0] - finite[1], 0.0)


def most_shifted_tokens(
    run: Run,
    context: Mapping[str, Any],
    against: Mapping[str, Any] | None = None,
    *,
    count: int = 10,
    frequent: int | None = None,
    unknown: str = "error",
) -> list[Row]:
    """Return the `count` tokens that the softmax bias of a context raises most, then the `count` that it lowers most.

    Each row has a `token` and the change of its log probability in `nats`; the largest changes come first in both
    groups. `against` is the context to compare with, by default the expected one. `frequent` is the number of most
    frequent tokens that are considered (by default all), because biases of rare tokens are noisy.
    """
    limits.check(count=count, frequent=frequent)
    nats = bias_shift(run, context, against, unknown=unknown)
    specials = run.tokenizer.specials
    nats[specials.unknown] = 0.0
    order = np.argsort(-nats[: None if frequent is None else frequent + len(specials)], kind="stable").tolist()
    token_ids = [token_id for token_id in order if nats[token_id] > 0][:count]
    token_ids += [token_id for token_id in reversed(order) if nats[token_id] < 0][:count]
    return [{"token": run.tokenizer.tokens[token_id], "nats": float(nats[token_id])} for token_id in token_ids]


@dataclass(frozen=True)
class ValueColumn:
    """A column of a table with one entry for each value of a variable.

    A column of groups has `names` (N,), None where missing; a column of numbers has `numbers` (N,), NaN where missing.
    """

    name: str
    names: tuple[str | None, ...] = ()
    numbers: Floats | None = None

    @property
    def known(self) -> NDArray[np.int64]:
        """The indices of the values with an entry."""
        known = [name is not None for name in self.names] if self.numbers is None else np.isfinite(self.numbers)
        return np.flatnonzero(known)


def read_column(embeddings: Embeddings, source: Any, column: str) -> ValueColumn:
    """Aggregate `column` of a table over the rows of each value: the mean of numbers, or the most frequent name.

    `column` may state its kind: NAME:number or NAME:category. Raises a `UserError` if no row of the table has one of
    the values.
    """
    name, kind, _ = parse_column(column)
    choose("kind of column to colour or predict by", kind or "number", VALUE_COLUMN_KINDS)
    table = open_table(source)
    entries_of: dict[str, Counter[str]] = {}
    for chunk in table.chunks([embeddings.source, name]):
        for value, entry in zip(chunk[embeddings.source], chunk[name], strict=True):
            if not is_missing(value) and not is_missing(entry):
                entries_of.setdefault(category_name(value), Counter())[category_name(entry)] += 1
    known = {value: entries_of[value] for value in embeddings.values if value in entries_of}
    if not known:
        raise UserError(f"{table.name}: no row has {name} and a value of {embeddings.source} that the run knows")
    means = {value: _mean(entries) for value, entries in known.items()}
    numeric = kind == "number" or (kind is None and None not in means.values())
    if not numeric:
        most_frequent = {value: entries.most_common(1)[0][0] for value, entries in known.items()}
        return ValueColumn(name, tuple(map(most_frequent.get, embeddings.values)))
    for value, mean in means.items():
        if mean is None:
            invalid = next(entry for entry in known[value] if to_number(entry) is None)
            raise UserError(f"{table.name}: {name} of {value!r} is {invalid!r}, not a number")
    return ValueColumn(name, numbers=np.array([means.get(v, math.nan) for v in embeddings.values], dtype=np.float64))


def _mean(entries: Counter[str]) -> float | None:
    """Return the mean of entries with their counts; None if any entry is not a number."""
    total = 0.0
    for entry, count in entries.items():
        number = to_number(entry)
        if number is None:
            return None
        total += number * count
    return total / entries.total()


def project_to_plane(vectors: Floats) -> tuple[Floats, Floats]:
    """Project `vectors` (N, k) to their first two principal axes; return points (N, 2) and shares of variance (2,).

    Principal axes have no sign. To make maps reproducible, the component of an axis that is largest in absolute value
    is made positive.
    """
    if vectors.shape[0] < MIN_VALUES or vectors.shape[1] < 2:
        actual = f"{vectors.shape[0]} of size {vectors.shape[1]}"
        raise UserError(f"map: expected at least {MIN_VALUES} embeddings of size 2 or more, got {actual}")
    centred = vectors - vectors.mean(0)
    _, widths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(np.take_along_axis(axes[:2], np.abs(axes[:2]).argmax(1)[:, None], axis=1))
    squares = widths**2
    return centred @ axes.T, squares[:2] / max(float(squares.sum()), 1e-300)


def map_points(embeddings: Embeddings, column: ValueColumn) -> list[Row]:
    """Project all embeddings to a plane; return a row for each value with an entry in `column`.

    A row has `value`, `count` (its training texts), the coordinates `x` and `y`, and its entry as `group` or `number`.
    """
    points, _ = project_to_plane(embeddings.vectors)
    rows: list[Row] = []
    for index in column.known.tolist():
        x, y = points[index].tolist()
        row: Row = {"value": embeddings.values[index], "count": int(embeddings.counts[index]), "x": x, "y": y}
        row |= {"group": column.names[index]} if column.numbers is None else {"number": float(column.numbers[index])}
        rows.append(row)
    return rows


def ellipses(rows: Sequence[Row], groups: int = 8) -> list[Row]:
    """Fit an ellipse to the points of each of the `groups` largest groups; return a row for each.

    A row has `group`, `count` (its points) and the centre `x`, `y`. The half axis `wide` is `HALF_AXIS` standard
    deviations in the direction `angle` (degrees from the x axis), the half axis `high` is as many across it.
    """
    limits.check(groups=groups)
    results: list[Row] = []
    for group, count in Counter(str(row["group"]) for row in rows).most_common():
        if count < MIN_VALUES or len(results) == groups:
            break
        points = np.array([(row["x"], row["y"]) for row in rows if row["group"] == group])
        variances, axes = np.linalg.eigh(np.cov(points.T))
        high, wide = (HALF_AXIS * np.sqrt(np.maximum(variances, 0.0))).tolist()
        angle = math.degrees(math.atan2(axes[1, 1], axes[0, 1])) % 180
        x, y = points.mean(0).tolist()
        results.append({"group": group, "count": count, "x": x, "y": y, "wide": wide, "high": high, "angle": angle})
    return results


def neighbour_agreement(embeddings: Embeddings, column: ValueColumn, measure: str = "cosine") -> Row:
    """Measure how well the entries of a value and of its nearest neighbour in the embedding space agree.

    The row has `column`, `values` (the number of values with an entry) and `measure`. For a column of groups it has
    the number of `groups`, the share `same` of values whose neighbour is in the same group, and `chance`, this share
    for random pairs. For a column of numbers it has the `correlation` of both entries.
    """
    choose("measure", measure, EMBEDDING_MEASURES)
    known = column.known
    if len(known) < MIN_VALUES:
        raise UserError(f"{column.name}: expected entries for at least {MIN_VALUES} values, got {len(known)}")
    vectors, nearest_indices = embeddings.vectors[known], []
    for rows in np.array_split(np.arange(len(known)), 1 + len(known) ** 2 // MAX_PAIRS):
        similarities = _similarities(vectors[rows], vectors, measure)
        similarities[np.arange(len(rows)), rows] = -np.inf
        nearest_indices.append(similarities.argmax(1))
    row = {"column": column.name, "values": len(known), "measure": measure}
    neighbours = np.concatenate(nearest_indices)
    if column.numbers is not None:
        return row | {"correlation": _correlation(column.numbers[known], column.numbers[known][neighbours])}
    names = np.array([column.names[index] for index in known])
    sizes = np.unique(names, return_counts=True)[1]
    chance = float((sizes * (sizes - 1)).sum() / (len(known) * (len(known) - 1)))
    return row | {"groups": len(sizes), "same": float((names[neighbours] == names).mean()), "chance": chance}


def _correlation(first: Floats, second: Floats) -> float:
    """Return Pearson's correlation, 0 if one side is constant."""
    return float(np.corrcoef(first, second)[0, 1]) if np.ptp(first) and np.ptp(second) else 0.0


def predict_column(embeddings: Embeddings, column: ValueColumn, *, seed: int = 0, progress: bool = False) -> Row:
    """Predict the entries of a column from the embeddings of the values, with gradient-boosted trees.

    The figures are those of a cross-validation. The row has `column`, `variable`, `values` (the number of values) and
    `folds`. For a column of groups, of which those with fewer than `FOLDS` values are omitted, it has the number of
    `groups`, the `accuracy`, its standard `deviation` over folds, and the share of the `majority` group. For a column
    of numbers it has `r2` and the `correlation` of prediction and number.
    """
    limits.check(seed=seed)
    try:
        ensemble, selection = (importlib.import_module(f"sklearn.{name}") for name in ("ensemble", "model_selection"))
    except ImportError:
        hint = "pip install 'factorcell[analysis]'"
        raise UserError(f"scikit-learn is not installed; install the extra: {hint}") from None
    known = column.known
    targets: NDArray[Any] = np.array(column.names)[known] if column.numbers is None else column.numbers[known]
    if column.numbers is None:
        groups, sizes = np.unique(targets, return_counts=True)
        is_frequent = np.isin(targets, groups[sizes >= FOLDS])
        known, targets = known[is_frequent], targets[is_frequent]
        folds = selection.StratifiedKFold(FOLDS, shuffle=True, random_state=seed % (1 << 32))
        model = ensemble.GradientBoostingClassifier(random_state=seed % (1 << 32))
    else:
        folds = selection.KFold(FOLDS, shuffle=True, random_state=seed % (1 << 32))
        model = ensemble.GradientBoostingRegressor(random_state=seed % (1 << 32))
    if len(known) < 2 * FOLDS or len(np.unique(targets)) < 2:
        where = f" in groups of at least {FOLDS}" if column.numbers is None else ""
        raise UserError(f"{column.name}: expected at least {2 * FOLDS} different values{where}, got {len(known)}")
    vectors, predicted, accuracies = embeddings.vectors[known], targets.copy(), []
    parts = list(folds.split(vectors, targets))
    for train, test in progress_bar(parts, desc=f"predicting {column.name}", unit="folds", show=progress):
        predicted[test] = model.fit(vectors[train], targets[train]).predict(vectors[test])
        accuracies.append(float((predicted[test] == targets[test]).mean()))
    row = {"column": column.name, "variable": embeddings.variable, "values": len(known), "folds": FOLDS}
    if column.numbers is None:
        sizes = np.unique(targets, return_counts=True)[1]
        rates = {"accuracy": float((predicted == targets).mean()), "deviation": float(np.std(accuracies, ddof=1))}
        return row | {"groups": len(sizes), **rates, "majority": float(sizes.max() / len(targets))}
    total = ((targets - targets.mean()) ** 2).sum()
    r2 = float(1 - ((predicted - targets) ** 2).sum() / total)
    return row | {"r2": r2, "correlation": _correlation(predicted, targets)}

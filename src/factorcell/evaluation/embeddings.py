"""Inspection of the learned embeddings of a context variable: neighbours, tokens, maps, relations to other columns.

    shift(w) = log p(w | h = 0, c) - log p(w | h = 0, c')

is the change of the softmax bias by context c against context c' (by default the expected context). It includes the
low-rank bias Q c of TACL 2018 (table 5) and all other adapted biases.

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

SIGMA = 1.5  # half axes of an ellipse in standard deviations (TACL 2018, figure 6)
MIN_VALUES = 3  # minimum number of values for a map, an ellipse and the agreement of neighbours
FOLDS = 5
BLOCK = 1 << 22  # maximum number of pairs of values that are compared at once
VALUE_COLUMN_KINDS = ("category", "number")

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Embeddings:
    """The embeddings `vectors` (N, k) of the `values` of one variable, most frequent first, without the unknown value.

    `counts` (N,) are the numbers of training texts, `source` is the column. If the values are users (`are_users`),
    error messages do not suggest values.
    """

    variable: str
    source: str
    values: tuple[str, ...]
    counts: NDArray[np.int64]
    vectors: Floats
    are_users: bool = False

    @classmethod
    def from_run(cls, run: Run, variable: str = "", values: Sequence[str] = ()) -> "Embeddings":
        """Return the embeddings of `variable`, by default of the one with the most of `values`, then the most values.

        Raises a `UserError` if the run has no embeddings of categories.
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
        """Return the row of a value; a `UserError` for an unknown value suggests a similar one, unless it is a user."""
        name = category_name(value)
        if name in self.values:
            return self.values.index(name)
        hint = "" if self.are_users else nearest_hint(name, self.values)
        raise UserError(
            f"{self.variable} {name!r} was never seen in training or is a rare value{hint}; "
            f"the run has {len(self.values):,} values"
        )

    def neighbours(self, values: Sequence[object], count: int = 10, measure: str = "cosine") -> list[Row]:
        """Return the `count` nearest values of each of `values`: rows with `value`, `near`, `count` and the measure."""
        choose("measure", measure, EMBEDDING_MEASURES)
        limits.check(count=count)
        rows = np.array([self.row(value) for value in values], dtype=np.int64)
        results: list[Row] = []
        for index, similarities in zip(rows, _similarities(self.vectors[rows], self.vectors, measure), strict=True):
            for other in [int(other) for other in np.argsort(-similarities, kind="stable") if other != index][:count]:
                row = {"value": self.values[index], "near": self.values[other], "count": int(self.counts[other])}
                similarity = similarities[other]
                results.append({**row, measure: float(similarity if measure == "cosine" else -similarity)})
        return results


def _has_embeddings(run: Run) -> bool:
    """Return whether an adapter or bias reads the embeddings; biases of single values have coefficients instead."""
    config = run.config.model
    return bool(weight_adapters(config) or set(config.output_bias) & set(LOW_RANK_BIASES))


def _missing_reason(run: Run) -> str:
    if run.model.prefix is not None:
        return "the context is read as a prefix"
    return "only the bias of each value is adapted" if run.model.encoder is not None else "the run is not adapted"


def _similarities(first: Floats, second: Floats, measure: str) -> Floats:
    """Return the cosine, or minus the distance, of each of `first` (M, k) and each of `second` (N, k): (M, N)."""
    if measure == "cosine":
        first, second = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (first, second))
        cosines: Floats = first @ second.T
        return cosines
    squares: Floats = (first**2).sum(1)[:, None] - 2 * first @ second.T + (second**2).sum(1)
    return -np.sqrt(np.maximum(squares, 0.0))


def bias_shift(
    run: Run, context: Mapping[str, Any], against: Mapping[str, Any] | None = None, *, unknown: str = "error"
) -> Floats:
    """Return the change (V,), in nats, of each token's log probability by the softmax bias from `against` to `context`.

    Columns that a context does not set have their expected value. Tokens of probability 0 have 0.
    """
    head = run.model.head
    if not run.model.adapted or not run.config.model.output_bias:
        raise UserError(f"{run.folder}: the context does not change the softmax bias; train with --output-bias")
    logs = []
    with run.scoring():
        for columns in (context, against or {}):
            corpus = run.read([""], [columns], unknown=unknown)
            conditions = run.model.condition(run.batch(corpus, np.array([0])).context).head
            zero_state = run.model.embedding.new_zeros(1, run.model.backbone.size)
            logs.append(head.log_probabilities(zero_state, conditions)[0].double().cpu().numpy())
    possible = np.isfinite(logs[0]) & np.isfinite(logs[1])
    return np.where(possible, np.where(possible, logs[0], 0.0) - np.where(possible, logs[1], 0.0), 0.0)


def most_shifted_tokens(
    run: Run,
    context: Mapping[str, Any],
    against: Mapping[str, Any] | None = None,
    *,
    count: int = 10,
    frequent: int | None = None,
    unknown: str = "error",
) -> list[Row]:
    """Return the `count` tokens that a context raises most in the softmax bias, then those that it lowers most.

    Rows have `token` and `nats`, the largest changes first. `against` is the context to compare with, by default the
    expected one. `frequent` restricts the tokens to the most frequent ones, because biases of rare tokens are noisy.
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
    """Another column aggregated by the values of a variable: `names` (N,) or `numbers` (N,), None or NaN if missing."""

    name: str
    names: tuple[str | None, ...] = ()
    numbers: Floats | None = None

    @property
    def known(self) -> NDArray[np.int64]:
        """The indices of the values that are not missing."""
        known = [name is not None for name in self.names] if self.numbers is None else np.isfinite(self.numbers)
        return np.flatnonzero(known)


def read_column(embeddings: Embeddings, source: Any, column: str) -> ValueColumn:
    """Aggregate `column` of a table by the values of a variable: the mean of numbers, or the most frequent name.

    `column` may state its kind: NAME:number or NAME:category. Raises a `UserError` if the table has none of the values.
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
    numbers = [(to_number(entry), count) for entry, count in entries.items()]
    if any(number is None for number, _ in numbers):
        return None
    return sum((number or 0.0) * count for number, count in numbers) / entries.total()


def project_to_plane(vectors: Floats) -> tuple[Floats, Floats]:
    """Project `vectors` (N, k) to their first two principal axes; return points (N, 2) and shares of variance (2,).

    The sign of an axis is chosen so that its largest component is positive, which makes maps reproducible.
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
    """Project all embeddings to a plane; return `value`, `count`, `x`, `y` and `group` or `number` of known values."""
    points, _ = project_to_plane(embeddings.vectors)
    rows: list[Row] = []
    for index in column.known.tolist():
        x, y = points[index].tolist()
        row: Row = {"value": embeddings.values[index], "count": int(embeddings.counts[index]), "x": x, "y": y}
        row |= {"group": column.names[index]} if column.numbers is None else {"number": float(column.numbers[index])}
        rows.append(row)
    return rows


def ellipses(rows: Sequence[Row], groups: int = 8) -> list[Row]:
    """Fit an ellipse to the points of each of the `groups` largest groups: `group`, `count`, centre `x`, `y`, and axes.

    The half axes `wide` and `high` are `SIGMA` standard deviations along and across `angle` (degrees from the x axis).
    """
    limits.check(groups=groups)
    results: list[Row] = []
    for group, count in Counter(str(row["group"]) for row in rows).most_common():
        if count < MIN_VALUES or len(results) == groups:
            break
        points = np.array([(row["x"], row["y"]) for row in rows if row["group"] == group])
        variances, axes = np.linalg.eigh(np.cov(points.T))
        high, wide = (SIGMA * np.sqrt(np.maximum(variances, 0.0))).tolist()
        angle = math.degrees(math.atan2(axes[1, 1], axes[0, 1])) % 180
        x, y = points.mean(0).tolist()
        results.append({"group": group, "count": count, "x": x, "y": y, "wide": wide, "high": high, "angle": angle})
    return results


def neighbour_agreement(embeddings: Embeddings, column: ValueColumn, measure: str = "cosine") -> Row:
    """Measure how well a value and its nearest neighbour agree in the column.

    The row has `column`, `values` (their number) and `measure`. For groups it has the share of pairs in the `same`
    group, and `chance`, this share for random pairs; for numbers it has the `correlation`.
    """
    choose("measure", measure, EMBEDDING_MEASURES)
    known = column.known
    if len(known) < MIN_VALUES:
        raise UserError(f"{column.name}: expected entries for at least {MIN_VALUES} values, got {len(known)}")
    vectors, nearest_indices = embeddings.vectors[known], []
    for rows in np.array_split(np.arange(len(known)), 1 + len(known) ** 2 // BLOCK):
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
    """Predict the column from the embeddings by gradient-boosted trees, in `FOLDS`-fold cross-validation.

    The row has `column`, `variable`, `values` (their number) and `folds`. For groups (with at least `FOLDS` values) it
    has the number of `groups`, the `accuracy`, its `deviation` over folds, and the share of the `majority` group; for
    numbers it has `r2` and the `correlation` of prediction and number.
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

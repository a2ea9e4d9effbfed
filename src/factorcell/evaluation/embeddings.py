"""The learned values of a context variable: their neighbours, words, maps, and relation to other columns.

    shift(w) = log p(w | h = 0, c) - log p(w | h = 0, c')

is what a context adds to the softmax bias, Q c of TACL 2018 (table 5) and all other adapted biases, against another
context c', by default the expected one.

Shapes: N values, k embedding, B contexts, V vocabulary.
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

SIGMA = 1.5  # standard deviations from the centre to the edge of an ellipse (TACL 2018, figure 6)
LEAST = 3  # minimal number of values of a group with an ellipse
FOLDS = 5
AT_ONCE = 1 << 22  # pairs of values that are compared at once
KINDS = ("category", "number")

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Embeddings:
    """The embeddings `vectors` (N, k) of the `values` of one variable, without the rare one, most frequent first.

    `counts` (N,) are their training texts, `source` is their column. Errors do not name values that are `people`.
    """

    variable: str
    source: str
    values: tuple[str, ...]
    counts: NDArray[np.int64]
    vectors: Floats
    are_users: bool = False

    @classmethod
    def from_run(cls, run: Run, variable: str = "", values: Sequence[str] = ()) -> "Embeddings":
        """Return the embeddings of `variable`, or else of the variable that knows most of `values`, or has most values.

        `UserError` if the run has no embeddings of categories.
        """
        if run.model.encoder is None or not _learned(run):
            raise UserError(f"{run.folder}: there are no embeddings of contexts, since {_why_not(run)}")
        categories = run.schema.categories
        if not categories:
            kinds = ", ".join(f"{known.name} ({known.kind})" for known in run.schema.variables)
            raise UserError(f"{run.folder}: none of its contexts is a category with embeddings; they are {kinds}")
        if variable:
            choose("categorical context", variable, [known.name for known in categories])
        names = set(map(category_name, values))
        best = max(
            (known for known in categories if variable in ("", known.name)),
            key=lambda known: (len(names & set(known.values[1:])), len(known.values)),
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
        """Return the place of a value; a `UserError` names the nearest one, unless they are people."""
        name = category_name(value)
        if name in self.values:
            return self.values.index(name)
        hint = "" if self.are_users else nearest_hint(name, self.values)
        raise UserError(
            f"{self.variable} {name!r} was never seen in training or is a rare value{hint}; "
            f"it knows {len(self.values):,} values"
        )

    def neighbours(self, values: Sequence[object], count: int = 10, measure: str = "cosine") -> list[Row]:
        """Return the `count` nearest values of each of `values`: rows of value, near, count, and the measure."""
        choose("measure", measure, EMBEDDING_MEASURES)
        limits.check(count=count)
        rows = np.array([self.row(value) for value in values], dtype=np.int64)
        found: list[Row] = []
        for own, line in zip(rows, _nearness(self.vectors[rows], self.vectors, measure), strict=True):
            for other in [int(other) for other in np.argsort(-line, kind="stable") if other != own][:count]:
                row = {"value": self.values[own], "near": self.values[other], "count": int(self.counts[other])}
                found.append({**row, measure: float(line[other] if measure == "cosine" else -line[other])})
        return found


def _learned(run: Run) -> bool:
    """Return whether anything reads the embeddings: biases of single values have coefficients instead."""
    config = run.config.model
    return bool(weight_adapters(config) or set(config.output_bias) & set(LOW_RANK_BIASES))


def _why_not(run: Run) -> str:
    if run.model.prefix is not None:
        return "its context is read as a prefix"
    return "only the bias of each value is adapted" if run.model.encoder is not None else "it is not adapted"


def _nearness(some: Floats, every: Floats, measure: str) -> Floats:
    """Return the cosine, or minus the distance, of each of `some` (M, k) and each of `every` (N, k): (M, N)."""
    if measure == "cosine":
        first, second = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (some, every))
        cosines: Floats = first @ second.T
        return cosines
    squares: Floats = (some**2).sum(1)[:, None] - 2 * some @ every.T + (every**2).sum(1)
    return -np.sqrt(np.maximum(squares, 0.0))


def bias_shift(
    run: Run, context: Mapping[str, Any], against: Mapping[str, Any] | None = None, *, unknown: str = "error"
) -> Floats:
    """Return by how many nats (V,) a context raises each token in the softmax bias over the context `against`.

    Columns that a context lacks are expected. Impossible tokens have 0.
    """
    head = run.model.head
    if not run.model.adapted or not run.config.model.output_bias:
        raise UserError(f"{run.folder}: no context changes its softmax bias (it was trained without --output-bias)")
    logs = []
    with run.scoring():
        for columns in (context, against or {}):
            corpus = run.read([""], [columns], unknown=unknown)
            conditions = run.model.condition(run.batch(corpus, np.array([0])).context).head
            nothing = run.model.embedding.new_zeros(1, run.model.backbone.size)
            logs.append(head.log_probabilities(nothing, conditions)[0].double().cpu().numpy())
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

    Rows have `token` and `nats`, strongest first. `against` is the context to compare with (default: expected).
    `frequent` considers only that many most frequent tokens, since the bias of rare ones is little trained.
    """
    limits.check(count=count, frequent=frequent)
    nats = bias_shift(run, context, against, unknown=unknown)
    specials = run.tokenizer.specials
    nats[specials.unknown] = 0.0
    order = np.argsort(-nats[: None if frequent is None else frequent + len(specials)], kind="stable").tolist()
    chosen = [token for token in order if nats[token] > 0][:count]
    chosen += [token for token in reversed(order) if nats[token] < 0][:count]
    return [{"token": run.tokenizer.tokens[token], "nats": float(nats[token])} for token in chosen]


@dataclass(frozen=True)
class ValueColumn:
    """Another column, by the values of a variable: `names` (N,) or `numbers` (N,), None or NaN if nothing."""

    name: str
    names: tuple[str | None, ...] = ()
    numbers: Floats | None = None

    @property
    def known(self) -> NDArray[np.int64]:
        """The places of the values that it says something of."""
        known = [name is not None for name in self.names] if self.numbers is None else np.isfinite(self.numbers)
        return np.flatnonzero(known)


def read_column(embeddings: Embeddings, source: Any, column: str) -> ValueColumn:
    """Read what `column` of a table says of each value: the mean of its numbers, else the most frequent name.

    `column` may say which: NAME:number or NAME:category. `UserError` if the table has none of the values.
    """
    name, kind, _ = parse_column(column)
    choose("kind of column to colour or predict by", kind or "number", KINDS)
    table = open_table(source)
    said: dict[str, Counter[str]] = {}
    for chunk in table.chunks([embeddings.source, name]):
        for value, entry in zip(chunk[embeddings.source], chunk[name], strict=True):
            if not is_missing(value) and not is_missing(entry):
                said.setdefault(category_name(value), Counter())[category_name(entry)] += 1
    here = {value: said[value] for value in embeddings.values if value in said}
    if not here:
        raise UserError(f"{table.name}: {embeddings.source} and {name} name none of the values that the run knows")
    means = {value: _mean(entries) for value, entries in here.items()}
    numeric = kind == "number" or (kind is None and None not in means.values())
    if not numeric:
        most = {value: entries.most_common(1)[0][0] for value, entries in here.items()}
        return ValueColumn(name, tuple(map(most.get, embeddings.values)))
    for value, mean in means.items():
        if mean is None:
            wrong = next(entry for entry in here[value] if to_number(entry) is None)
            raise UserError(f"{table.name}: {name} of {value!r} is {wrong!r}, not a number")
    return ValueColumn(name, numbers=np.array([means.get(v, math.nan) for v in embeddings.values], dtype=np.float64))


def _mean(entries: Counter[str]) -> float | None:
    numbers = [(to_number(entry), count) for entry, count in entries.items()]
    if any(number is None for number, _ in numbers):
        return None
    return sum((number or 0.0) * count for number, count in numbers) / entries.total()


def project_to_plane(vectors: Floats) -> tuple[Floats, Floats]:
    """Return points (N, 2) on the first two principal axes of vectors (N, k), and their shares (2,) of the variance.

    The largest component of an axis is positive, so that the same vectors give the same map.
    """
    if vectors.shape[0] < LEAST or vectors.shape[1] < 2:
        raise UserError(f"{vectors.shape[0]} embeddings of {vectors.shape[1]} numbers: a map needs 3 of 2 at least")
    centred = vectors - vectors.mean(0)
    _, widths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(np.take_along_axis(axes[:2], np.abs(axes[:2]).argmax(1)[:, None], axis=1))
    squares = widths**2
    return centred @ axes.T, squares[:2] / max(float(squares.sum()), 1e-300)


def map_points(embeddings: Embeddings, column: ValueColumn) -> list[Row]:
    """Return a row for each value that the column knows, on the map of all: value, count, x, y, and group or number."""
    places, _ = project_to_plane(embeddings.vectors)
    rows: list[Row] = []
    for place in column.known.tolist():
        x, y = places[place].tolist()
        row: Row = {"value": embeddings.values[place], "count": int(embeddings.counts[place]), "x": x, "y": y}
        row |= {"group": column.names[place]} if column.numbers is None else {"number": float(column.numbers[place])}
        rows.append(row)
    return rows


def ellipses(rows: Sequence[Row], groups: int = 8) -> list[Row]:
    """Fit an ellipse to each of the `groups` largest groups of `points`: group, count, centre x and y, and axes.

    The half axes `wide` and `high` are `SIGMA` standard deviations along and across `angle` (degrees from the x axis).
    """
    limits.check(groups=groups)
    found: list[Row] = []
    for group, count in Counter(str(row["group"]) for row in rows).most_common():
        if count < LEAST or len(found) == groups:
            break
        places = np.array([(row["x"], row["y"]) for row in rows if row["group"] == group])
        squares, axes = np.linalg.eigh(np.cov(places.T))
        high, wide = (SIGMA * np.sqrt(np.maximum(squares, 0.0))).tolist()
        angle = math.degrees(math.atan2(axes[1, 1], axes[0, 1])) % 180
        x, y = places.mean(0).tolist()
        found.append({"group": group, "count": count, "x": x, "y": y, "wide": wide, "high": high, "angle": angle})
    return found


def neighbour_agreement(embeddings: Embeddings, column: ValueColumn, measure: str = "cosine") -> Row:
    """Return how well a value and its nearest neighbour agree in the column.

    The row has column, values (their number) and measure; for groups how often both have the `same` one, and the same
    for any two values, `chance`; for numbers their `correlation`.
    """
    choose("measure", measure, EMBEDDING_MEASURES)
    known = column.known
    if len(known) < LEAST:
        raise UserError(f"{column.name} is known of {len(known)} values; neighbours take {LEAST} at least")
    vectors, nearest = embeddings.vectors[known], []
    for rows in np.array_split(np.arange(len(known)), 1 + len(known) ** 2 // AT_ONCE):
        near = _nearness(vectors[rows], vectors, measure)
        near[np.arange(len(rows)), rows] = -np.inf
        nearest.append(near.argmax(1))
    row = {"column": column.name, "values": len(known), "measure": measure}
    other = np.concatenate(nearest)
    if column.numbers is not None:
        return row | {"correlation": _correlation(column.numbers[known], column.numbers[known][other])}
    names = np.array([column.names[place] for place in known])
    sizes = np.unique(names, return_counts=True)[1]
    chance = float((sizes * (sizes - 1)).sum() / (len(known) * (len(known) - 1)))
    return row | {"groups": len(sizes), "same": float((names[other] == names).mean()), "chance": chance}


def _correlation(one: Floats, other: Floats) -> float:
    return float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) and np.ptp(other) else 0.0


def predict_column(embeddings: Embeddings, column: ValueColumn, *, seed: int = 0, progress: bool = False) -> Row:
    """Predict the column from the embedding by gradient-boosted trees, in `FOLDS`-fold cross-validation.

    The row has column, variable, values and folds; for groups (those of at least `FOLDS` values) their number,
    accuracy with its standard deviation over folds, and the accuracy of the majority group; for numbers r2, and the
    correlation of prediction and number.
    """
    limits.check(seed=seed)
    try:
        ensemble, selection = (importlib.import_module(f"sklearn.{name}") for name in ("ensemble", "model_selection"))
    except ImportError:
        hint = "pip install 'factorcell[analysis]'"
        raise UserError(f"scikit-learn is not installed; the extra brings it: {hint}") from None
    known = column.known
    targets: NDArray[Any] = np.array(column.names)[known] if column.numbers is None else column.numbers[known]
    if column.numbers is None:
        groups, sizes = np.unique(targets, return_counts=True)
        often = np.isin(targets, groups[sizes >= FOLDS])
        known, targets = known[often], targets[often]
        folds = selection.StratifiedKFold(FOLDS, shuffle=True, random_state=seed % (1 << 32))
        model = ensemble.GradientBoostingClassifier(random_state=seed % (1 << 32))
    else:
        folds = selection.KFold(FOLDS, shuffle=True, random_state=seed % (1 << 32))
        model = ensemble.GradientBoostingRegressor(random_state=seed % (1 << 32))
    if len(known) < 2 * FOLDS or len(np.unique(targets)) < 2:
        least = f" in groups of at least {FOLDS}" if column.numbers is None else ""
        raise UserError(f"{column.name} has {len(known)} values{least}; to predict it takes {2 * FOLDS} that differ")
    vectors, predicted, shares = embeddings.vectors[known], targets.copy(), []
    parts = list(folds.split(vectors, targets))
    for train, test in progress_bar(parts, desc=f"predicting {column.name}", unit="folds", show=progress):
        predicted[test] = model.fit(vectors[train], targets[train]).predict(vectors[test])
        shares.append(float((predicted[test] == targets[test]).mean()))
    row = {"column": column.name, "variable": embeddings.variable, "values": len(known), "folds": FOLDS}
    if column.numbers is None:
        sizes = np.unique(targets, return_counts=True)[1]
        rates = {"accuracy": float((predicted == targets).mean()), "deviation": float(np.std(shares, ddof=1))}
        return row | {"groups": len(sizes), **rates, "majority": float(sizes.max() / len(targets))}
    spread = ((targets - targets.mean()) ** 2).sum()
    r2 = float(1 - ((predicted - targets) ** 2).sum() / spread)
    return row | {"r2": r2, "correlation": _correlation(predicted, targets)}

"""What a model has learned about the values of a context variable: neighbours, words, maps, columns it never saw.

    shift(w) = log p(w | h = 0, c) - log p(w | h = 0, c')

is what a context adds to the softmax bias, Q c of TACL 2018 (table 5) and all other adapted biases, against another
context c', by default one of which nothing is known.

Shapes: N values, k embedding, B contexts, V vocabulary.
"""

import difflib
import importlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import limits
from factorcell.choices import MEASURES
from factorcell.config import INSIDE, UserError, choose
from factorcell.data.columns import parse_column
from factorcell.data.tables import open_table
from factorcell.data.values import category_name, is_missing, to_number
from factorcell.model.adapters import shifting
from factorcell.model.run import Run
from factorcell.progress import progress_bar

SIGMA = 1.5  # deviations from the centre to the edge of an ellipse (TACL 2018, figure 6)
LEAST = 3  # values of a group with an ellipse
FOLDS = 5
AT_ONCE = 1 << 22  # pairs of values that are compared at once
KINDS = ("category", "number")

Row = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Embeddings:
    """The embeddings `vectors` (N, k) of the `values` of one variable, without the rare one, most frequent first.

    `counts` (N,) are their training texts, `source` the column that they are read from. Those of `people` are not
    named where another is asked for.
    """

    variable: str
    source: str
    values: tuple[str, ...]
    counts: NDArray[np.int64]
    vectors: Floats
    people: bool = False

    @classmethod
    def of(cls, run: Run, variable: str = "", values: Sequence[str] = ()) -> "Embeddings":
        """Those of `variable`, or of the variable that knows all `values`; of several, the one with the most.

        `UserError` where the run has no embeddings of categories, or where no variable knows the values.
        """
        if run.model.encoder is None or not _learned(run):
            raise UserError(f"{run.folder}: there are no embeddings of contexts, since {_why_not(run)}")
        all_of_them = run.schema.categories
        if not all_of_them:
            kinds = ", ".join(f"{known.name} ({known.kind})" for known in run.schema.variables)
            raise UserError(f"{run.folder}: none of its contexts is a category with embeddings; they are {kinds}")
        if variable:
            choose("categorical context", variable, [known.name for known in all_of_them])
        order = sorted(all_of_them, key=lambda known: -len(known.values))
        found = [
            cls(
                known.name,
                known.source,
                known.values[1:],
                np.array(known.counts[1:], dtype=np.int64),
                run.model.encoder.tables[all_of_them.index(known)].detach().double().cpu().numpy()[1:],
                known.source == run.config.data.user,
            )
            for known in order
            if variable in ("", known.name)
        ]
        names = list(dict.fromkeys(map(category_name, values)))
        known = {one.variable: [name for name in names if name in one.values] for one in found}
        best = max(found, key=lambda one: len(known[one.variable]))
        if not known[best.variable]:
            return next((one for one in found if any(map(one.like, names))), best)
        if len(known[best.variable]) < len(names) == len(set().union(*known.values())):
            told = (f"{name} knows {', '.join(own)}" for name, own in known.items() if own)
            raise UserError(f"no variable knows all of these values: {'; '.join(told)}; ask of one at a time")
        return best

    def row(self, value: object) -> int:
        """The place of a value, or a `UserError` that names the nearest ones, if they are no people."""
        name = category_name(value)
        if name in self.values:
            return self.values.index(name)
        raise UserError(
            f"{self.variable} {name!r} was never seen in training or is a rare value; "
            f"it knows {len(self.values):,} values{'' if self.people else f' ({self._hint(name)})'}"
        )

    def like(self, name: str) -> list[str]:
        """The values that are most like `name` and not the same, if there are some."""
        folded = {known.casefold(): known for known in reversed(self.values)}
        begun = [folded[text] for text in sorted(folded, key=len) if text.startswith(name.casefold())]
        alike = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3)]
        return [known for known in dict.fromkeys([*begun[:3], *alike]) if known != name][:3]

    def _hint(self, name: str) -> str:
        """The values that are most like `name`, or else the most frequent ones."""
        near = self.like(name)
        return f"did you mean {' or '.join(map(repr, near))}?" if near else f"such as {', '.join(self.values[:5])}"

    def neighbours(self, values: Sequence[object], count: int = 10, measure: str = "cosine") -> list[Row]:
        """The `count` nearest values of each of `values`, nearest first: value, near, count, and the measure."""
        choose("measure", measure, MEASURES)
        limits.check(count=count)
        rows = np.array([self.row(value) for value in values], dtype=np.int64)
        found = []
        for own, line in zip(rows, _nearness(self.vectors[rows], self.vectors, measure), strict=True):
            order = [int(other) for other in np.argsort(-line, kind="stable") if other != own][:count]
            found += [
                {
                    "value": self.values[own],
                    "near": self.values[other],
                    "count": int(self.counts[other]),
                    measure: float(line[other] if measure == "cosine" else -line[other]),
                }
                for other in order
            ]
        return found


def _learned(run: Run) -> bool:
    """Whether anything that is trained reads the embeddings: biases of single values have coefficients of their own."""
    config = run.config.model
    return bool(shifting(config) or set(config.output_bias) & set(INSIDE))


def _why_not(run: Run) -> str:
    if run.model.prefix is not None:
        return "its context is read as a prefix"
    return "only the bias of each value is adapted" if run.model.encoder is not None else "it is not adapted"


def _nearness(some: Floats, every: Floats, measure: str) -> Floats:
    """How near each of `some` (M, k) is to each of `every` (N, k): (M, N), the cosine or minus the distance."""
    if measure == "cosine":
        cosines: Floats = _unit(some) @ _unit(every).T
        return cosines
    squares: Floats = (some**2).sum(1)[:, None] - 2 * some @ every.T + (every**2).sum(1)
    return -np.sqrt(np.maximum(squares, 0.0))


def _unit(vectors: Floats) -> Floats:
    lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def shift(
    run: Run, context: Mapping[str, Any], against: Mapping[str, Any] | None = None, *, unknown: str = "error"
) -> Floats:
    """By how many nats (V,) a context raises each token in the softmax bias over `against`; 0 of what never comes.

    Columns that a context does not give are expected; without `against` all of them are.
    """
    head = run.model.head
    if not run.model.adapted or not run.config.model.output_bias:
        raise UserError(f"{run.folder}: no context changes its softmax bias (it was trained without --output-bias)")
    logs = []
    with run.scoring():
        for given in (context, {} if against is None else against):
            corpus = run.read([""], [given], unknown=unknown)
            conditions = run.model.condition(run.batch(corpus, np.array([0])).context).head
            nothing = run.model.embedding.new_zeros(1, run.model.backbone.size)
            logs.append(head.log_probabilities(nothing, conditions)[0].double().cpu().numpy())
    possible = np.isfinite(logs[0]) & np.isfinite(logs[1])
    return np.where(possible, np.where(possible, logs[0], 0.0) - np.where(possible, logs[1], 0.0), 0.0)


def words(
    run: Run,
    context: Mapping[str, Any],
    against: Mapping[str, Any] | None = None,
    *,
    count: int = 10,
    frequent: int | None = None,
    unknown: str = "error",
) -> list[Row]:
    """The `count` tokens that `shift` raises most, then the `count` that it lowers most, strongest first.

    Rows: token, nats (negative where lowered). `frequent`: only among so many of the most frequent tokens, since
    training says little about the bias of a rare one.
    """
    limits.check(count=count, frequent=frequent)
    nats = shift(run, context, against, unknown=unknown)
    specials = run.tokenizer.specials
    nats[specials.unknown] = 0.0  # no token that anybody wrote
    order = np.argsort(-nats[: None if frequent is None else frequent + len(specials)], kind="stable").tolist()
    chosen = [token for token in order if nats[token] > 0][:count]
    chosen += [token for token in reversed(order) if nats[token] < 0][:count]
    return [{"token": run.tokenizer.tokens[token], "nats": float(nats[token])} for token in chosen]


@dataclass(frozen=True)
class ValueColumn:
    """What a column says of every value of a variable: `names` (N,) or `numbers` (N,), None or NaN where nothing."""

    name: str
    names: tuple[str | None, ...] = ()
    numbers: Floats | None = None

    @property
    def known(self) -> NDArray[np.int64]:
        """The places of the values that it says something of."""
        told = [name is not None for name in self.names] if self.numbers is None else np.isfinite(self.numbers)
        return np.flatnonzero(told)


def read_column(embeddings: Embeddings, source: Any, column: str) -> ValueColumn:
    """What `column` of a table says of each value: the mean of its numbers, else the most frequent name in its rows.

    `column` may say which, NAME:number or NAME:category. `UserError` where the table has none of the values.
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
    """The mean of counted entries, None where one of them is no number."""
    numbers = {entry: to_number(entry) for entry in entries}
    total = 0.0
    for entry, number in numbers.items():
        if number is None:
            return None
        total += number * entries[entry]
    return total / entries.total()


def project(vectors: Floats) -> tuple[Floats, Floats]:
    """Points (N, 2) on the first two principal axes of vectors (N, k), and the shares (2,) of the variance there.

    The largest part of an axis is positive, so that the same vectors give the same map.
    """
    if vectors.shape[0] < LEAST or vectors.shape[1] < 2:
        raise UserError(f"{vectors.shape[0]} embeddings of {vectors.shape[1]} numbers: a map needs 3 of 2 at least")
    centred = vectors - vectors.mean(0)
    _, widths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(np.take_along_axis(axes[:2], np.abs(axes[:2]).argmax(1)[:, None], axis=1))
    squares = widths**2
    return centred @ axes.T, squares[:2] / max(float(squares.sum()), 1e-300)


def points(embeddings: Embeddings, column: ValueColumn) -> list[Row]:
    """A row for every value that the column tells of, on the map of all values: value, count, x, y, group or number."""
    places, _ = project(embeddings.vectors)
    rows: list[Row] = []
    for place in column.known.tolist():
        x, y = places[place].tolist()
        row: Row = {"value": embeddings.values[place], "count": int(embeddings.counts[place]), "x": x, "y": y}
        told = {"group": column.names[place]} if column.numbers is None else {"number": float(column.numbers[place])}
        rows.append(row | told)
    return rows


def ellipses(rows: Sequence[Row], groups: int = 8, sigma: float = SIGMA) -> list[Row]:
    """Where the `groups` largest groups of `points` lie, as if Gaussian: group, count, centre x and y, and an ellipse.

    Its half axes `wide` and `high` are `sigma` deviations along and across `angle` (degrees from the x axis).
    """
    limits.check(groups=groups)
    found: list[Row] = []
    for group, count in Counter(str(row["group"]) for row in rows).most_common():
        if count < LEAST or len(found) == groups:
            break
        places = np.array([(row["x"], row["y"]) for row in rows if row["group"] == group])
        squares, axes = np.linalg.eigh(np.cov(places.T))
        high, wide = (sigma * np.sqrt(np.maximum(squares, 0.0))).tolist()
        angle = math.degrees(math.atan2(axes[1, 1], axes[0, 1])) % 180
        x, y = places.mean(0).tolist()
        found.append({"group": group, "count": count, "x": x, "y": y, "wide": wide, "high": high, "angle": angle})
    return found


def agreement(embeddings: Embeddings, column: ValueColumn, measure: str = "cosine") -> Row:
    """How well a value and its nearest neighbour agree in the column; all k numbers of an embedding count.

    Row: column, values (that it tells of), measure; of groups how often both have the `same`, and by `chance`, for any
    two values; of numbers their `correlation`.
    """
    choose("measure", measure, MEASURES)
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
    """Pearson's; 0 where one of them does not vary."""
    return float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) and np.ptp(other) else 0.0


def predict(embeddings: Embeddings, column: ValueColumn, *, seed: int = 0, progress: bool = False) -> Row:
    """How well gradient-boosted trees tell the column from the embedding alone, in `FOLDS`-fold cross-validation.

    Of groups, those of at least `FOLDS` values: column, values, groups, accuracy (and its deviation over the folds)
    beside that of always saying the largest group. Of numbers: r2, and `correlation` of prediction and number.
    """
    limits.check(seed=seed)
    ensemble, selection = _sklearn("ensemble"), _sklearn("model_selection")
    known = column.known
    told: NDArray[Any] = np.array(column.names)[known] if column.numbers is None else column.numbers[known]
    if column.numbers is None:
        groups, sizes = np.unique(told, return_counts=True)
        often = np.isin(told, groups[sizes >= FOLDS])
        known, told = known[often], told[often]
        folds = selection.StratifiedKFold(FOLDS, shuffle=True, random_state=seed % (1 << 32))
        model = ensemble.GradientBoostingClassifier(random_state=seed % (1 << 32))
    else:
        folds = selection.KFold(FOLDS, shuffle=True, random_state=seed % (1 << 32))
        model = ensemble.GradientBoostingRegressor(random_state=seed % (1 << 32))
    if len(known) < 2 * FOLDS or len(np.unique(told)) < 2:
        least = f" in groups of at least {FOLDS}" if column.numbers is None else ""
        raise UserError(f"{column.name} has {len(known)} values{least}; to predict it takes {2 * FOLDS} that differ")
    vectors, guessed, shares = embeddings.vectors[known], told.copy(), []
    parts = list(folds.split(vectors, told))
    for train, test in progress_bar(parts, desc=f"predicting {column.name}", unit="folds", show=progress):
        guessed[test] = model.fit(vectors[train], told[train]).predict(vectors[test])
        shares.append(float((guessed[test] == told[test]).mean()))
    row = {"column": column.name, "variable": embeddings.variable, "values": len(known), "folds": FOLDS}
    if column.numbers is None:
        sizes = np.unique(told, return_counts=True)[1]
        rates = {"accuracy": float((guessed == told).mean()), "deviation": float(np.std(shares, ddof=1))}
        return row | {"groups": len(sizes), **rates, "majority": float(sizes.max() / len(told))}
    spread = ((told - told.mean()) ** 2).sum()
    r2 = float(1 - ((guessed - told) ** 2).sum() / spread)
    return row | {"r2": r2, "correlation": _correlation(guessed, told)}


def _sklearn(module: str) -> Any:
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError:
        raise UserError(
            "scikit-learn is not installed; the extra brings it: pip install 'factorcell[analysis]'"
        ) from None

"""Rows of a replay to figures: mean reciprocal rank and others, with intervals, for all queries and for groups.

Every figure is a ratio of sums over users, sum_u a_u / sum_u b_u. Averaged over queries, b counts a user's queries;
averaged over users, a is the user's own mean and b is 1. Intervals are those of the bootstrap over users; all systems
and groups see the same draws, so that differences are paired.

Shapes: S systems, N queries that all of them judged, U users, D draws, W places in a stream.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap, limits
from factorcell.choices import REPLAY_WINDOW
from factorcell.config import UserError, choose

MIN_USERS = 10  # users behind a point of the curve
FIGURES = ("mrr", "success_1", "success_10", "partial_mrr", "saved", "perplexity")
# Where the ranges of a number begin; the last has no end.
PREFIXES = (2, 3, 4, 5, 6, 8, 11, 16, 21, 31, 51)
QUERIES = (3, 6, 11, 16, 21, 31, 41, 61, 81)
PLACES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)

Row = dict[str, Any]
Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class JudgedQueries:
    """The queries that all systems judged; `values` holds the terms of the sum of each figure, (S, N).

    Nats are divided by `targets` (S, N), all other figures by the number of queries. `groups` holds the labels of each
    kind of group, and the number of the label of each query.
    """

    systems: tuple[str, ...]
    users: Whole
    places: Whole
    values: dict[str, Floats]
    targets: Floats
    groups: dict[str, tuple[list[str], Whole]]


def join_systems(rows: Sequence[Mapping[str, Any]]) -> JudgedQueries:
    """Join the rows of the systems; a query that not all systems have judged is omitted."""
    systems = tuple(dict.fromkeys(row["system"] for row in rows))
    table: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        table.setdefault((row["user"], row["position"]), {})[row["system"]] = row
    queries = [[found[name] for name in systems] for found in table.values() if len(found) == len(systems)]
    if not queries:
        raise UserError("no query was judged by all systems: nothing to summarise")

    def column(name: str) -> Floats:
        return np.array([[query[s][name] for query in queries] for s in range(len(systems))], dtype=np.float64)

    rank, partial, first = column("rank"), column("partial_rank"), [query[0] for query in queries]
    names = {user: number for number, user in enumerate(dict.fromkeys(one["user"] for one in first))}
    places = np.array([one["position"] for one in first])
    groups = {
        "prefix_length": _ranges(np.array([one["prefix_length"] for one in first]), PREFIXES),
        "query_length": _ranges(np.array([one["query_length"] for one in first]), QUERIES),
        "queries_seen": _ranges(places, PLACES),
    }
    if all(one["seen"] is not None for one in first):
        unseen = np.array([0 if one["seen"] else 1 for one in first])
        groups = {"prefix": (["seen", "unseen"], unseen), **groups}
    values = {
        "mrr": np.nan_to_num(1 / rank),
        "success_1": (rank == 1).astype(np.float64),
        "success_10": (rank <= 10).astype(np.float64),
        "partial_mrr": np.nan_to_num(1 / partial),
        "saved": column("saved"),
        "perplexity": column("nats"),
    }
    users = np.array([names[one["user"]] for one in first])
    return JudgedQueries(systems, users, places, values, column("targets"), groups)


def summarise(
    rows: Sequence[Mapping[str, Any]],
    base: str,
    *,
    window: int = REPLAY_WINDOW,
    draws: int = bootstrap.DRAWS,
    seed: int = 0,
) -> Row:
    """Return all figures of the rows of a replay with intervals and differences to the system `base`.

    Each of the `rows` of the summary has the figures of a system: `by` and `value` (the group, "all" first), `over`
    queries or users, their numbers, every figure with `_low` and `_high`, its `_difference` to `base` with these, and
    `ahead`, the figures in which the system is significantly better than all others. `curve` has the improvement over
    `base` by the number of earlier queries.
    """
    limits.check(window=window, seed=seed)
    table = join_systems(rows)
    choose("base system", base, table.systems)
    users = int(table.users.max()) + 1
    weights = bootstrap.resampling_counts(users, draws, seed)
    splits = [("all", "all", np.ones(len(table.users), dtype=bool))]
    for name, (labels, numbers) in table.groups.items():
        splits += [(name, label, numbers == number) for number, label in enumerate(labels) if (numbers == number).any()]
    return {
        "base": base,
        "systems": list(table.systems),
        "queries": len(table.users),
        "users": users,
        "draws": draws,
        "window": window,
        "rows": [row for by, value, chosen in splits for row in _split(table, chosen, weights, base, by, value)],
        "curve": list(_curve(table, weights, base, window)),
        "milliseconds": _milliseconds(rows),
    }


def _split(
    table: JudgedQueries, chosen: NDArray[np.bool_], weights: Floats, base: str, by: str, value: str
) -> Iterator[Row]:
    """Yield the rows of one group of queries: every system, over queries and over users."""
    count = int(chosen.sum())
    of_users = len(np.unique(table.users[chosen]))
    for over in ("queries", "users"):
        found: list[Row] = [
            {"system": name, "by": by, "value": value, "over": over, "queries": count, "users": of_users, "ahead": []}
            for name in table.systems
        ]
        for figure in FIGURES:
            points = _points(table, figure, chosen, weights, over)
            own = points[:, [table.systems.index(base)]]
            for s, row in enumerate(found):
                row |= _interval(figure, points[:, s])
                if row["system"] != base:
                    difference = points[:, [s]] - own
                    row |= _interval(f"{figure}_difference", difference[:, 0])
            if (best := _ahead(points, figure)) is not None:
                found[best]["ahead"].append(figure)
        yield from found


def _ahead(points: Floats, figure: str) -> int | None:
    """Return the system whose figure, `points` (1 + D, S), is significantly better than that of all others, if any."""
    there = np.flatnonzero(np.isfinite(points[0]))
    known = points[:, there]
    best = bootstrap.clear_winner(
        known[0],
        figure != "perplexity",
        lambda one, other: bootstrap.percentile_interval(known[:, one] - known[:, other]),
    )
    return None if best is None else int(there[best])


def _points(table: JudgedQueries, figure: str, chosen: NDArray[np.bool_], weights: Floats, over: str) -> Floats:
    """Return one figure of all systems, first of the users themselves, then of every draw of users (1 + D, S)."""
    users, counts = table.users[chosen], np.ones((len(table.systems), int(chosen.sum())))
    above = _by_user(table.values[figure][:, chosen], users, weights.shape[1])
    below = _by_user(table.targets[:, chosen] if figure == "perplexity" else counts, users, weights.shape[1])
    if over == "users":
        there = below > 0
        above, below = np.divide(above, below, out=np.zeros_like(above), where=there), there.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (weights @ above.T) / (weights @ below.T)
    return np.exp(ratio) if figure == "perplexity" else ratio


def _by_user(values: Floats, users: Whole, count: int) -> Floats:
    """Return the sums (S, U) of `values` (S, N)."""
    return np.stack([np.bincount(users, weights=line, minlength=count) for line in values])


def _interval(name: str, points: Floats) -> Row:
    """Return a figure (1 + D,) with its interval; None if a system does not have the figure."""
    if not math.isfinite(points[0]):
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return dict(bootstrap.percentile_interval(points).to_row(name))


def _curve(table: JudgedQueries, weights: Floats, base: str, window: int) -> Iterator[Row]:
    """Yield how much higher the MRR is than that of `base` (0.05: 5 %), by the earlier queries of a user (figure 5.2).

    A point is the ratio of the sums over the `window` positions around it (fewer at the ends), not a mean of ratios,
    in which a position with few queries would weigh too much.
    """
    own, reach = table.systems.index(base), window // 2
    sums = _by_place(table, weights)
    for place in range(sums.shape[2]):
        begin, end = max(0, place - reach), place + reach + 1
        inside = (begin <= table.places) & (table.places < end)
        users = len(np.unique(table.users[inside]))
        if users < MIN_USERS:
            continue
        totals = sums[:, :, begin:end].sum(axis=2)
        with np.errstate(invalid="ignore", divide="ignore"):
            gains = totals / totals[own] - 1
        for name, gain in zip(table.systems, gains, strict=True):
            if name != base and np.isfinite(gain[0]):
                row = {"system": name, "queries_seen": place, "queries": int(inside.sum()), "users": users}
                yield row | _interval("improvement", gain)


def _by_place(table: JudgedQueries, weights: Floats) -> Floats:
    """Return the sums of reciprocal ranks of every system and draw at every position of the streams (S, 1 + D, W)."""
    sums = np.zeros((len(table.systems), len(weights), int(table.places.max()) + 1))
    order = np.argsort(table.places, kind="stable")
    bounds = np.searchsorted(table.places[order], np.arange(sums.shape[2] + 1))
    for place, (begin, end) in enumerate(pairwise(bounds.tolist())):
        here = order[begin:end]  # no user is here twice
        sums[:, :, place] = table.values["mrr"][:, here] @ weights[:, table.users[here]].T
    return sums


def _ranges(values: Whole, begins: Sequence[int]) -> tuple[list[str], Whole]:
    """Return the labels of the ranges that begin at `begins`, and the number of the range of each value."""
    labels = [str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in pairwise(begins)]
    return [*labels, f"{begins[-1]}+"], np.searchsorted(np.array(begins), values, side="right") - 1


def _milliseconds(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the medians and 95th percentiles of the time that suggesting and learning took."""
    found = []
    for name in dict.fromkeys(row["system"] for row in rows):
        times = {"system": name}
        for work in ("suggest", "learn"):
            seconds = np.array([row[f"{work}_seconds"] for row in rows if row["system"] == name])
            middle, most = np.quantile(1000 * seconds, (0.5, 0.95))
            times |= {work: float(middle), f"{work}_95": float(most)}
        found.append(times)
    return found

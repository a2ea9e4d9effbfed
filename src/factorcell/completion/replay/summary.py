"""Figures of a replay, such as the mean reciprocal rank (MRR), for all queries and for groups of queries.

A query is one judged text of a stream (see `replay.streams`). A figure is a ratio of sums over users u:

    sum_u a_u / sum_u b_u

In a mean over queries, a_u is the sum of the values of the user's queries, and b_u is their number (for perplexities,
the logarithm is the ratio of nats to targets). In a mean over users, a_u is the user's mean, and b_u is 1. Intervals
are 95 % bootstrap intervals over users. All systems and groups use the same draws of users, so differences are paired.

Shapes: S systems, N queries that all systems judged, U users, D draws of users, W positions in a stream.
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

MIN_USERS = 10  # minimum number of users of a point of the curve
FIGURES = ("mrr", "success_1", "success_10", "partial_mrr", "saved", "perplexity")
# The first value of each range of prefix lengths, query lengths and positions; the last range has no end.
PREFIX_LENGTHS = (2, 3, 4, 5, 6, 8, 11, 16, 21, 31, 51)
QUERY_LENGTHS = (3, 6, 11, 16, 21, 31, 41, 61, 81)
POSITIONS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)

Row = dict[str, Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class JudgedQueries:
    """The queries that all systems judged.

    Attributes:
        systems: The names of the systems (S,).
        users: The number of the user of each query (N,).
        positions: The position of each query in its stream (N,).
        values: Figure -> its value for each system and query (S, N); nats for the perplexity.
        targets: The number of targets (S, N), by which the nats are divided.
        groups: Name of a grouping, such as `prefix_length` -> the labels of its groups, and for each query the index of
            its label (N,).
    """

    systems: tuple[str, ...]
    users: Ints
    positions: Ints
    values: dict[str, Floats]
    targets: Floats
    groups: dict[str, tuple[list[str], Ints]]


def join_systems(rows: Sequence[Mapping[str, Any]]) -> JudgedQueries:
    """Join the rows of all systems by query; omit queries that not all systems have judged."""
    systems = tuple(dict.fromkeys(row["system"] for row in rows))
    by_query: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_query.setdefault((row["user"], row["position"]), {})[row["system"]] = row
    queries = [[query[name] for name in systems] for query in by_query.values() if len(query) == len(systems)]
    if not queries:
        raise UserError("replay: no query was judged by all systems; a summary needs at least one")

    def column(name: str) -> Floats:
        return np.array(
            [[query[system][name] for query in queries] for system in range(len(systems))], dtype=np.float64
        )

    rank, partial_rank, first = column("rank"), column("partial_rank"), [query[0] for query in queries]
    numbers = {user: number for number, user in enumerate(dict.fromkeys(row["user"] for row in first))}
    positions = np.array([row["position"] for row in first])
    groups = {
        "prefix_length": _group(np.array([row["prefix_length"] for row in first]), PREFIX_LENGTHS),
        "query_length": _group(np.array([row["query_length"] for row in first]), QUERY_LENGTHS),
        "queries_seen": _group(positions, POSITIONS),
    }
    if all(row["seen"] is not None for row in first):
        is_unseen = np.array([0 if row["seen"] else 1 for row in first])
        groups = {"prefix": (["seen", "unseen"], is_unseen), **groups}
    values = {
        "mrr": np.nan_to_num(1 / rank),
        "success_1": (rank == 1).astype(np.float64),
        "success_10": (rank <= 10).astype(np.float64),
        "partial_mrr": np.nan_to_num(1 / partial_rank),
        "saved": column("saved"),
        "perplexity": column("nats"),
    }
    users = np.array([numbers[row["user"]] for row in first])
    return JudgedQueries(systems, users, positions, values, column("targets"), groups)


def summarise(
    rows: Sequence[Mapping[str, Any]],
    base: str,
    *,
    window: int = REPLAY_WINDOW,
    draws: int = bootstrap.DRAW_COUNT,
    seed: int = 0,
) -> Row:
    """Compute all figures of a replay, with intervals and with differences from a base system.

    Args:
        rows: The rows that `replay` has written.
        base: The system with which the others are compared.
        window: Number of neighbouring positions over which a point of the curve is computed.
        draws: Number of bootstrap draws.
        seed: The seed of the draws.

    Returns:
        The summary. Each of its `rows` has the figures of one system for one group of queries. `by` and `value` name
        the group; the group of all queries comes first. `over` says whether the figures are means over queries or
        users. Each figure has an interval (`_low` and `_high`) and a `_difference` from `base`, also with an interval.
        `ahead` lists the figures in which the system is significantly better than all others. `curve` has the
        improvement of the MRR over `base` by the number of earlier queries of a user.

    Raises:
        UserError: The base system is unknown, or no query was judged by all systems.
    """
    limits.check(window=window, seed=seed)
    queries = join_systems(rows)
    choose("base system", base, queries.systems)
    user_count = int(queries.users.max()) + 1
    weights = bootstrap.resampling_counts(user_count, draws, seed)  # (1 + D, U): how often each draw has each user
    groups = [("all", "all", np.ones(len(queries.users), dtype=bool))]
    for name, (labels, label_indices) in queries.groups.items():
        members = ((label, label_indices == index) for index, label in enumerate(labels))
        groups += [(name, label, in_group) for label, in_group in members if in_group.any()]
    return {
        "base": base,
        "systems": list(queries.systems),
        "queries": len(queries.users),
        "users": user_count,
        "draws": draws,
        "window": window,
        "rows": [row for by, value, in_group in groups for row in _rows(queries, in_group, weights, base, by, value)],
        "curve": list(_curve(queries, weights, base, window)),
        "milliseconds": _milliseconds(rows),
    }


def _rows(queries: JudgedQueries, in_group: Flags, weights: Floats, base: str, by: str, value: str) -> Iterator[Row]:
    """Yield the rows of one group of queries: one for each system, over queries and over users."""
    count, user_count = int(in_group.sum()), len(np.unique(queries.users[in_group]))
    for over in ("queries", "users"):
        rows: list[Row] = [
            {"system": name, "by": by, "value": value, "over": over, "queries": count, "users": user_count, "ahead": []}
            for name in queries.systems
        ]
        for figure in FIGURES:
            points = _points(queries, figure, in_group, weights, over)
            base_points = points[:, [queries.systems.index(base)]]
            for system, row in enumerate(rows):
                row |= _interval(figure, points[:, system])
                if row["system"] != base:
                    difference = points[:, [system]] - base_points
                    row |= _interval(f"{figure}_difference", difference[:, 0])
            if (best := _clear_winner(points, figure)) is not None:
                rows[best]["ahead"].append(figure)
        yield from rows


def _clear_winner(points: Floats, figure: str) -> int | None:
    """Return the index of the system whose figure is significantly better than those of all others, or None.

    Args:
        points: The figure of each system for all users and for each draw of users (1 + D, S).
        figure: The name of the figure.
    """
    systems = np.flatnonzero(np.isfinite(points[0]))
    finite = points[:, systems]
    best = bootstrap.find_clear_winner(
        finite[0],
        figure != "perplexity",
        lambda first, second: bootstrap.percentile_interval(finite[:, first] - finite[:, second]),
    )
    return None if best is None else int(systems[best])


def _points(queries: JudgedQueries, figure: str, in_group: Flags, weights: Floats, over: str) -> Floats:
    """Return one figure of all systems (1 + D, S): row 0 for all users, the other rows for draws of users."""
    users, counts = queries.users[in_group], np.ones((len(queries.systems), int(in_group.sum())))
    divisors = queries.targets[:, in_group] if figure == "perplexity" else counts
    numerator = _sum_by_user(queries.values[figure][:, in_group], users, weights.shape[1])
    denominator = _sum_by_user(divisors, users, weights.shape[1])
    if over == "users":
        has_queries = denominator > 0
        numerator = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=has_queries)
        denominator = has_queries.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (weights @ numerator.T) / (weights @ denominator.T)
    return np.exp(ratio) if figure == "perplexity" else ratio


def _sum_by_user(values: Floats, users: Ints, count: int) -> Floats:
    """Return the sum of `values` (S, N) over the queries of each user (S, U)."""
    return np.stack([np.bincount(users, weights=row, minlength=count) for row in values])


def _interval(name: str, points: Floats) -> Row:
    """Return a figure with its interval from `points` (1 + D,), as the keys of a row; None if the system lacks it."""
    if not math.isfinite(points[0]):
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return dict(bootstrap.percentile_interval(points).to_row(name))


def _curve(queries: JudgedQueries, weights: Floats, base: str, window: int) -> Iterator[Row]:
    """Yield the relative improvement of the MRR over `base` by the number of earlier queries (thesis 2018, figure 5.2).

    A point is a ratio of sums over the `window` positions around it, or fewer at both ends of the curve. A mean of
    ratios would give too much weight to positions with few queries.
    """
    base_index, half = queries.systems.index(base), window // 2
    sums = _sum_by_position(queries, weights)
    for position in range(sums.shape[2]):
        begin, end = max(0, position - half), position + half + 1
        in_window = (begin <= queries.positions) & (queries.positions < end)
        users = len(np.unique(queries.users[in_window]))
        if users < MIN_USERS:
            continue
        totals = sums[:, :, begin:end].sum(axis=2)
        with np.errstate(invalid="ignore", divide="ignore"):
            gains = totals / totals[base_index] - 1
        for name, gain in zip(queries.systems, gains, strict=True):
            if name != base and np.isfinite(gain[0]):
                row = {"system": name, "queries_seen": position, "queries": int(in_window.sum()), "users": users}
                yield row | _interval("improvement", gain)


def _sum_by_position(queries: JudgedQueries, weights: Floats) -> Floats:
    """Return the sum of reciprocal ranks of each system, for each draw of users and each position (S, 1 + D, W)."""
    sums = np.zeros((len(queries.systems), len(weights), int(queries.positions.max()) + 1))
    order = np.argsort(queries.positions, kind="stable")
    bounds = np.searchsorted(queries.positions[order], np.arange(sums.shape[2] + 1))
    for position, (begin, end) in enumerate(pairwise(bounds.tolist())):
        at_position = order[begin:end]  # at most one query of each user
        sums[:, :, position] = queries.values["mrr"][:, at_position] @ weights[:, queries.users[at_position]].T
    return sums


def _group(values: Ints, begins: Sequence[int]) -> tuple[list[str], Ints]:
    """Group values by ranges; return the labels of the ranges that begin at `begins`, and the range of each value."""
    labels = [str(begin) if end == begin + 1 else f"{begin}–{end - 1}" for begin, end in pairwise(begins)]
    return [*labels, f"{begins[-1]}+"], np.searchsorted(np.array(begins), values, side="right") - 1


def _milliseconds(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the median and the 95th percentile of the milliseconds to suggest and to learn, for each system."""
    summary = []
    for name in dict.fromkeys(row["system"] for row in rows):
        times = {"system": name}
        for task in ("suggest", "learn"):
            seconds = np.array([row[f"{task}_seconds"] for row in rows if row["system"] == name])
            median, percentile_95 = np.quantile(1000 * seconds, (0.5, 0.95))
            times |= {task: float(median), f"{task}_95": float(percentile_95)}
        summary.append(times)
    return summary

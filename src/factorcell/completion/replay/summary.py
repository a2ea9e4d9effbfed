"""Figures of a replay, such as the mean reciprocal rank (MRR), for all queries and for groups of queries.

A query is one judged text of a stream (see `replay.streams`). A figure is a ratio of sums over users u:

    sum_u a_u / sum_u b_u

a_u is the sum of the values of the user's queries, and b_u is the number of these queries. A perplexity is exp of the
ratio; its a_u is a sum of nats, and its b_u a sum of targets. Intervals are 95 % bootstrap intervals over users. All
systems and groups use the same draws of users, so differences are paired. Groups of fewer than ten users have no
intervals.

Shapes: S systems, N queries that all systems judged, U users, D draws of users.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import bootstrap
from factorcell.errors import UserError, check_choice
from factorcell.options import limits

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
        users: The index of the user of each query (N,).
        positions: The position of each query in its stream (N,).
        values: Figure -> its value for each system and query (S, N); for the perplexity, the nats.
        targets: The number of targets for each system and query (S, N), by which the nats are divided.
        groups: Name of a grouping, such as `prefix_length` -> the labels of its groups, and the index of the label of
            each query (N,).
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
    rows_by_query: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}  # user and position -> system -> row
    for row in rows:
        rows_by_query.setdefault((row["user"], row["position"]), {})[row["system"]] = row
    # For each query that all systems judged, the rows in the order of the systems.
    queries = [[query[name] for name in systems] for query in rows_by_query.values() if len(query) == len(systems)]
    if not queries:
        raise UserError("replay: no query was judged by all systems; a summary needs at least one")

    def column(name: str) -> Floats:
        """Return an entry of all rows, for each system and query (S, N); a missing value is NaN."""
        return np.array(
            [[query[system][name] for query in queries] for system in range(len(systems))], dtype=np.float64
        )

    ranks, partial_ranks = column("rank"), column("partial_rank")
    first_rows = [first for first, *_ in queries]  # of the first system; entries about the query are equal in all rows
    user_indices = {user: index for index, user in enumerate(dict.fromkeys(row["user"] for row in first_rows))}
    positions = np.array([row["position"] for row in first_rows])
    groups = {
        "prefix_length": _group_by_range(np.array([row["prefix_length"] for row in first_rows]), PREFIX_LENGTHS),
        "query_length": _group_by_range(np.array([row["query_length"] for row in first_rows]), QUERY_LENGTHS),
        "queries_seen": _group_by_range(positions, POSITIONS),
    }
    if all(row["seen"] is not None for row in first_rows):
        label_indices = np.array([0 if row["seen"] else 1 for row in first_rows])
        groups = {"prefix": (["seen", "unseen"], label_indices), **groups}
    values = {
        "mrr": np.nan_to_num(1 / ranks),
        "success_1": (ranks == 1).astype(np.float64),
        "success_10": (ranks <= 10).astype(np.float64),
        "partial_mrr": np.nan_to_num(1 / partial_ranks),
        "saved": column("saved"),
        "perplexity": column("nats"),
    }
    users = np.array([user_indices[row["user"]] for row in first_rows])
    return JudgedQueries(systems, users, positions, values, column("targets"), groups)


def summarise(
    rows: Sequence[Mapping[str, Any]],
    base: str,
    *,
    draws: int = bootstrap.DRAW_COUNT,
    seed: int = 0,
) -> Row:
    """Compute all figures of a replay, with intervals and with differences from a base system.

    Args:
        rows: The rows that `replay` has written.
        base: The system with which the others are compared.
        draws: Number of bootstrap draws.
        seed: The seed of the draws.

    Returns:
        The summary. Each of its `rows` has the figures of one system for one group of queries. The entries `by` and
        `value` of a row name the group; the group of all queries comes first. Each figure has an interval (`_low` and
        `_high`) and a `_difference` from `base`, also with an interval; `perplexity_change` is the relative difference,
        which only systems with the same targets as `base` have. In groups of fewer than ten users, the ends of
        intervals are None. The entry `ahead` lists the figures in which the system is significantly better than all
        others.

    Raises:
        UserError: The base system is unknown, or no query was judged by all systems.
    """
    [seed] = limits.check(seed=seed)
    queries = join_systems(rows)
    check_choice("base system", base, queries.systems)
    user_count = int(queries.users.max()) + 1
    draw_counts = bootstrap.resampling_counts(user_count, draws, seed)  # (1 + D, U): how often each draw has each user
    groups = [("all", "all", np.ones(len(queries.users), dtype=bool))]
    for name, (labels, label_indices) in queries.groups.items():
        members = ((label, label_indices == index) for index, label in enumerate(labels))
        groups += [(name, label, in_group) for label, in_group in members if in_group.any()]
    group_rows: list[Row] = []
    for by, value, in_group in groups:
        group_rows += _group_rows(queries, in_group, draw_counts, base, by, value)
    return {
        "base": base,
        "systems": list(queries.systems),
        "queries": len(queries.users),
        "users": user_count,
        "draws": draws,
        "rows": group_rows,
        "milliseconds": _time_rows(rows),
    }


def _group_rows(
    queries: JudgedQueries, in_group: Flags, draw_counts: Floats, base: str, by: str, value: str
) -> Iterator[Row]:
    """Yield the rows of one group of queries, one for each system."""
    query_count, user_count = int(in_group.sum()), len(np.unique(queries.users[in_group]))
    base_index = queries.systems.index(base)
    has_targets_of_base = (queries.targets == queries.targets[base_index]).all(axis=1)  # (S,)
    facts = {"by": by, "value": value, "queries": query_count, "users": user_count}
    rows: list[Row] = [{"system": name, **facts, "ahead": []} for name in queries.systems]
    for figure in FIGURES:
        points = _compute_points(queries, figure, in_group, draw_counts)
        base_points = points[:, base_index]
        for row, system_points, is_comparable in zip(rows, points.T, has_targets_of_base, strict=True):
            row |= _interval_entries(figure, system_points, user_count)
            if row["system"] != base:
                row |= _interval_entries(f"{figure}_difference", system_points - base_points, user_count)
                if figure == "perplexity" and is_comparable:
                    row |= _interval_entries("perplexity_change", system_points / base_points - 1, user_count)
        if (best := _clear_winner(points, figure, user_count)) is not None:
            rows[best]["ahead"].append(figure)
    yield from rows


def _clear_winner(points: Floats, figure: str, user_count: int) -> int | None:
    """Return the index of the system whose figure is significantly better than those of all others, or None.

    Args:
        points: The figure of each system (1 + D, S): in row 0 for all users, in the other rows for draws of users.
        figure: The name of the figure.
        user_count: The number of users with queries.
    """
    systems = np.flatnonzero(np.isfinite(points[0]))
    finite = points[:, systems]
    best = bootstrap.find_clear_winner(
        finite[0],
        figure != "perplexity",
        lambda first, second: bootstrap.percentile_interval(finite[:, first] - finite[:, second], user_count),
    )
    return None if best is None else int(systems[best])


def _compute_points(queries: JudgedQueries, figure: str, in_group: Flags, draw_counts: Floats) -> Floats:
    """Return one figure of all systems (1 + D, S): in row 0 for all users, in the other rows for draws of users."""
    users, user_count = queries.users[in_group], draw_counts.shape[1]
    values = queries.values[figure][:, in_group]
    divisors = queries.targets[:, in_group] if figure == "perplexity" else np.ones_like(values)
    numerator = _sum_by_user(values, users, user_count)
    denominator = _sum_by_user(divisors, users, user_count)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = (draw_counts @ numerator.T) / (draw_counts @ denominator.T)
    return np.exp(ratios) if figure == "perplexity" else ratios


def _sum_by_user(values: Floats, users: Ints, user_count: int) -> Floats:
    """Return the sum of `values` (S, N) over the queries of each user (S, U)."""
    return np.stack([np.bincount(users, weights=row, minlength=user_count) for row in values])


def _interval_entries(name: str, points: Floats, user_count: int) -> Row:
    """Return a figure and its interval from `points` (1 + D,) as entries of a row.

    The figure is None if the system has none, and the ends of the interval are None if there are too few users.
    """
    if not math.isfinite(points[0]):
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return dict(bootstrap.percentile_interval(points, user_count).to_row(name))


def _group_by_range(values: Ints, starts: Sequence[int]) -> tuple[list[str], Ints]:
    """Return the labels of the ranges that start at `starts`, and the index of the range of each of `values`."""
    labels = [str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in pairwise(starts)]
    range_indices = np.searchsorted(np.array(starts), values, side="right") - 1
    return [*labels, f"{starts[-1]}+"], range_indices


def _time_rows(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the median and the 95th percentile of the milliseconds to suggest and to learn, for each system."""
    time_rows = []
    for name in dict.fromkeys(row["system"] for row in rows):
        times = {"system": name}
        for task in ("suggest", "learn"):
            seconds = np.array([row[f"{task}_seconds"] for row in rows if row["system"] == name])
            median, percentile_95 = np.quantile(1000 * seconds, (0.5, 0.95))
            times |= {task: float(median), f"{task}_95": float(percentile_95)}
        time_rows.append(times)
    return time_rows

"""Compare the figures of a replay with hand-computed values, slow loops and slow bootstraps."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from factorcell.bootstrap import MIN_UNITS
from factorcell.completion.replay.summary import FIGURES, join_systems, summarise
from factorcell.errors import UserError

Row = dict[str, Any]


def row(system: str, user: str, position: int, rank: int | None, **columns: Any) -> Row:
    """Return a row of a replay."""
    base = {"prefix_length": 2, "query_length": 5, "seen": None, "partial_rank": rank, "saved": 3 if rank else 0}
    figures = {"nats": None, "targets": None, "suggest_seconds": 0.01, "learn_seconds": 0.0}
    return {"system": system, "user": user, "position": position, "rank": rank, **base, **figures, **columns}


def random_rows(users: int = 14, seed: int = 0) -> list[Row]:
    """Return random rows of three systems, the last without nats, for users with 1 to 30 queries."""
    random, rows = np.random.default_rng(seed), []
    for user in range(users):
        for position in range(int(random.integers(1, 31))):
            prefix = int(random.integers(2, 60))
            columns_of_query = {"prefix_length": prefix, "query_length": prefix + int(random.integers(1, 40))}
            columns_of_query["seen"] = bool(random.integers(2))
            for system in ("one", "two", "three"):
                rank = int(random.integers(1, 15))
                nats = {} if system == "three" else {"nats": float(random.gamma(9)), "targets": prefix + 5}
                partial = int(random.integers(1, 11))
                columns = {"partial_rank": partial, "saved": int(random.integers(0, 9)), **columns_of_query, **nats}
                rows.append(row(system, f"user {user}", position, rank if rank <= 10 else None, **columns))
    return rows


def figures_of(rows: list[Row]) -> dict[str, float]:
    """Compute all figures of the rows of one system in a loop."""
    count, totals = len(rows), dict.fromkeys(FIGURES, 0.0)
    nats, targets = 0.0, 0
    for entry in rows:
        totals["mrr"] += 0 if entry["rank"] is None else 1 / entry["rank"]
        totals["success_1"] += entry["rank"] == 1
        totals["success_10"] += entry["rank"] is not None
        totals["partial_mrr"] += 0 if entry["partial_rank"] is None else 1 / entry["partial_rank"]
        totals["saved"] += entry["saved"]
        if entry["nats"] is not None:
            nats, targets = nats + entry["nats"], targets + entry["targets"]
    figures = {name: total / count for name, total in totals.items()}
    return figures | {"perplexity": math.exp(nats / targets) if targets else math.nan}


def find_row(summary: Row, system: str, by: str = "all", value: str = "all") -> Row:
    """Return one row of a summary."""
    (matching,) = [
        entry for entry in summary["rows"] if (entry["system"], entry["by"], entry["value"]) == (system, by, value)
    ]
    return dict(matching)


def test_figures_agree_with_hand_computed_values() -> None:
    rows = [
        row("one", "ann", 0, 1, nats=2.0, targets=4),
        row("one", "ann", 1, 4, nats=1.0, targets=2, partial_rank=2),
        row("one", "ann", 3, None, nats=3.0, targets=2, partial_rank=10, saved=1),
        row("one", "ben", 0, 2, nats=2.0, targets=1),
    ]
    summary = summarise(rows, "one", draws=10)
    assert (summary["queries"], summary["users"]) == (4, 2)
    over_queries = find_row(summary, "one")
    assert over_queries["mrr"] == pytest.approx((1 + 0.25 + 0 + 0.5) / 4)
    assert over_queries["success_1"] == pytest.approx(1 / 4)
    assert over_queries["success_10"] == pytest.approx(3 / 4)
    assert over_queries["partial_mrr"] == pytest.approx((1 + 0.5 + 0.1 + 0.5) / 4)
    assert over_queries["saved"] == pytest.approx((3 + 3 + 1 + 3) / 4)
    assert over_queries["perplexity"] == pytest.approx(math.exp(8 / 9))
    assert {entry["by"] for entry in summary["rows"]} == {"all", "prefix_length", "query_length", "queries_seen"}


def test_figures_of_every_group_agree_with_a_slow_loop() -> None:
    rows = random_rows()
    summary = summarise(rows, "one", draws=5)

    def is_within(label: str, value: int) -> bool:
        low, _, high = label.removesuffix("+").partition("–")
        return int(low) <= value and (label.endswith("+") or value <= int(high or low))

    members: dict[str, Callable[[Row, str], bool]] = {
        "all": lambda entry, label: True,
        "prefix": lambda entry, label: entry["seen"] == (label == "seen"),
        "prefix_length": lambda entry, label: is_within(label, entry["prefix_length"]),
        "query_length": lambda entry, label: is_within(label, entry["query_length"]),
        "queries_seen": lambda entry, label: is_within(label, entry["position"]),
    }
    assert {entry["by"] for entry in summary["rows"]} == set(members)
    counted: defaultdict[tuple[str, str], int] = defaultdict(int)
    for entry in summary["rows"]:
        sample = [r for r in rows if r["system"] == entry["system"] and members[entry["by"]](r, entry["value"])]
        users = list(dict.fromkeys(r["user"] for r in sample))
        assert (entry["queries"], entry["users"]) == (len(sample), len(users))
        counted[entry["by"], entry["system"]] += entry["queries"]
        whole = figures_of(sample)
        for figure in FIGURES:
            expected = whole[figure]
            if math.isnan(expected):
                assert entry["system"] == "three"
                assert entry[figure] is entry[f"{figure}_low"] is None
            else:
                assert entry[figure] == pytest.approx(expected)
    assert set(counted.values()) == {len(rows) // 3}  # every query is in exactly one group of each kind


def test_differences_are_paired() -> None:
    random = np.random.default_rng(1)
    rows = []
    for user in range(40):
        for position in range(5):
            nats = float(random.gamma(3, 10 * (1 + user)))
            rows.append(row("base", f"u{user}", position, 2, nats=nats, targets=50, saved=user))
            rows.append(row("better", f"u{user}", position, 1, nats=nats, targets=50, saved=user + 1))
    better = find_row(summarise(rows, "base"), "better")
    assert better["saved_high"] - better["saved_low"] > 5
    assert [better[f"saved_difference{end}"] for end in ("", "_low", "_high")] == pytest.approx([1, 1, 1])
    assert [better[f"mrr_difference{end}"] for end in ("", "_low", "_high")] == pytest.approx([0.5, 0.5, 0.5])
    assert better["perplexity_difference"] == better["perplexity_difference_low"] == better["perplexity_change"] == 0
    for entry in rows:
        if entry["system"] == "better":
            entry["nats"] -= 50 * math.log(2)
    halved = find_row(summarise(rows, "base"), "better")
    changes = [halved[f"perplexity_change{end}"] for end in ("", "_low", "_high")]
    assert changes == pytest.approx([-0.5] * 3), "the differences in perplexity vary with the user, the ratios do not"
    rows[1]["targets"] = 49
    assert "perplexity_change" not in find_row(summarise(rows, "base"), "better"), "the targets differ"
    assert "mrr_difference" not in find_row(summarise(rows, "base"), "base")


def test_intervals_agree_with_a_slow_bootstrap() -> None:
    rows = random_rows(30)
    summary = summarise(rows, "one", draws=2000)
    users = sorted({entry["user"] for entry in rows})
    rows_of_user = {user: [r for r in rows if r["user"] == user and r["system"] == "two"] for user in users}
    random, draws_of_figures = np.random.default_rng(123), []
    for _ in range(700):
        sample = [r for number in random.integers(len(users), size=len(users)) for r in rows_of_user[users[number]]]
        draws_of_figures.append(figures_of(sample))
    actual = find_row(summary, "two")
    for figure in FIGURES:
        low, high = np.quantile([entry[figure] for entry in draws_of_figures], (0.025, 0.975))
        assert actual[f"{figure}_low"] == pytest.approx(low, abs=0.15 * (high - low))
        assert actual[f"{figure}_high"] == pytest.approx(high, abs=0.15 * (high - low))
    assert summarise(rows, "one") == summarise(rows, "one")
    other = find_row(summarise(rows, "one", seed=1), "two")
    assert other["mrr"] == actual["mrr"]
    assert other["mrr_low"] != find_row(summarise(rows, "one"), "two")["mrr_low"]


def test_groups_of_few_users_have_no_intervals() -> None:
    def rows_of(user_count: int, position: int) -> list[Row]:
        """Return rows of two systems, of which `one` has the higher MRR for every user."""
        return [
            row(system, f"u{user}", position, rank)
            for user in range(user_count)
            for system, rank in (("one", 1), ("two", 4))
        ]

    summary = summarise([*rows_of(MIN_UNITS, 0), *rows_of(MIN_UNITS - 1, 1)], "two", draws=5)
    many_users, few_users = find_row(summary, "one"), find_row(summary, "one", "queries_seen", "1")
    assert (many_users["users"], few_users["users"]) == (MIN_UNITS, MIN_UNITS - 1)
    assert [many_users[f"mrr_difference{end}"] for end in ("", "_low", "_high")] == [0.75, 0.75, 0.75]
    assert [few_users[f"mrr_difference{end}"] for end in ("", "_low", "_high")] == [0.75, None, None]
    assert [few_users[f"mrr{end}"] for end in ("", "_low", "_high")] == [1, None, None]
    assert "mrr" in many_users["ahead"]
    assert few_users["ahead"] == []


def test_queries_that_not_all_systems_judged_are_omitted() -> None:
    rows = [row("one", "ann", 0, 1), row("one", "ben", 0, 2), row("two", "ben", 0, 1)]
    summary = summarise(rows, "one", draws=5)
    assert (summary["queries"], summary["users"]) == (1, 1)
    assert find_row(summary, "one")["mrr"] == 0.5
    with pytest.raises(UserError, match="no query was judged by all systems"):
        join_systems([row("one", "ann", 0, 1), row("two", "ben", 0, 1)])
    with pytest.raises(UserError, match="no query was judged"):
        join_systems([])
    with pytest.raises(UserError, match=r"unknown base system 'tow' .did you mean 'two'"):
        summarise(rows, "tow")


def test_times_are_medians() -> None:
    rows = [row("one", "ann", n, 1, suggest_seconds=(n + 1) / 1000, learn_seconds=0.002) for n in range(101)]
    (times,) = summarise(rows, "one", draws=2)["milliseconds"]
    assert times == {"system": "one", "suggest": 51.0, "suggest_95": 96.0, "learn": 2.0, "learn_95": 2.0}

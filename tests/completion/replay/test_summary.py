"""Figures worked out by hand and by slow loops; intervals against a distribution that is known."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from factorcell.completion.replay.summary import FIGURES, MIN_USERS, join_systems, summarise
from factorcell.config import UserError

Row = dict[str, Any]


def row(system: str, user: str, position: int, rank: int | None, **more: Any) -> Row:
    """A row of a replay."""
    base = {"prefix_length": 2, "query_length": 5, "seen": None, "partial_rank": rank, "saved": 3 if rank else 0}
    figures = {"nats": None, "targets": None, "suggest_seconds": 0.01, "learn_seconds": 0.0}
    return {"system": system, "user": user, "position": position, "rank": rank, **base, **figures, **more}


def invented(users: int = 14, seed: int = 0) -> list[Row]:
    """Rows of three systems, the last of which is no model; users of 1 to 30 queries."""
    random, rows = np.random.default_rng(seed), []
    for user in range(users):
        for position in range(int(random.integers(1, 31))):
            prefix = int(random.integers(2, 60))
            facts = {"prefix_length": prefix, "query_length": prefix + int(random.integers(1, 40))}
            facts["seen"] = bool(random.integers(2))
            for system in ("one", "two", "three"):
                rank = int(random.integers(1, 15))
                nats = {} if system == "three" else {"nats": float(random.gamma(9)), "targets": prefix + 5}
                partial = int(random.integers(1, 11))
                shown = {"partial_rank": partial, "saved": int(random.integers(0, 9)), **facts, **nats}
                rows.append(row(system, f"user {user}", position, rank if rank <= 10 else None, **shown))
    return rows


def figures_of(rows: list[Row]) -> dict[str, float]:
    """All figures of the rows of one system, one row after the other."""
    count, totals = len(rows), dict.fromkeys(FIGURES, 0.0)
    nats, targets = 0.0, 0
    for one in rows:
        totals["mrr"] += 0 if one["rank"] is None else 1 / one["rank"]
        totals["success_1"] += one["rank"] == 1
        totals["success_10"] += one["rank"] is not None
        totals["partial_mrr"] += 0 if one["partial_rank"] is None else 1 / one["partial_rank"]
        totals["saved"] += one["saved"]
        if one["nats"] is not None:
            nats, targets = nats + one["nats"], targets + one["targets"]
    found = {name: total / count for name, total in totals.items()}
    return found | {"perplexity": math.exp(nats / targets) if targets else math.nan}


def find(summary: Row, system: str, over: str = "queries", by: str = "all", value: str = "all") -> Row:
    """The one row of a summary."""
    (found,) = [
        one
        for one in summary["rows"]
        if (one["system"], one["over"], one["by"], one["value"]) == (system, over, by, value)
    ]
    return dict(found)


def test_figures_worked_out_by_hand() -> None:
    rows = [
        row("one", "ann", 0, 1, nats=2.0, targets=4),
        row("one", "ann", 1, 4, nats=1.0, targets=2, partial_rank=2),
        row("one", "ann", 3, None, nats=3.0, targets=2, partial_rank=10, saved=1),
        row("one", "ben", 0, 2, nats=2.0, targets=1),
    ]
    summary = summarise(rows, "one", draws=10)
    assert (summary["queries"], summary["users"], summary["curve"]) == (4, 2, [])
    over_queries, over_users = find(summary, "one"), find(summary, "one", "users")
    assert over_queries["mrr"] == pytest.approx((1 + 0.25 + 0 + 0.5) / 4)
    assert over_users["mrr"] == pytest.approx(((1 + 0.25 + 0) / 3 + 0.5) / 2)
    assert over_queries["success_1"] == pytest.approx(1 / 4)
    assert over_users["success_1"] == pytest.approx((1 / 3 + 0) / 2)
    assert over_queries["success_10"] == pytest.approx(3 / 4)
    assert over_queries["partial_mrr"] == pytest.approx((1 + 0.5 + 0.1 + 0.5) / 4)
    assert over_queries["saved"] == pytest.approx((3 + 3 + 1 + 3) / 4)
    assert over_queries["perplexity"] == pytest.approx(math.exp(8 / 9))
    assert over_users["perplexity"] == pytest.approx(math.exp((6 / 8 + 2) / 2))
    assert {one["by"] for one in summary["rows"]} == {"all", "prefix_length", "query_length", "queries_seen"}


def test_figures_of_every_group_are_those_of_a_slow_loop() -> None:
    rows = invented()
    summary = summarise(rows, "one", draws=5)

    def within(label: str, value: int) -> bool:
        low, _, high = label.removesuffix("+").partition("–")
        return int(low) <= value and (label.endswith("+") or value <= int(high or low))

    members: dict[str, Callable[[Row, str], bool]] = {
        "all": lambda one, label: True,
        "prefix": lambda one, label: one["seen"] == (label == "seen"),
        "prefix_length": lambda one, label: within(label, one["prefix_length"]),
        "query_length": lambda one, label: within(label, one["query_length"]),
        "queries_seen": lambda one, label: within(label, one["position"]),
    }
    assert {one["by"] for one in summary["rows"]} == set(members)
    counted: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for one in summary["rows"]:
        chosen = [r for r in rows if r["system"] == one["system"] and members[one["by"]](r, one["value"])]
        users = list(dict.fromkeys(r["user"] for r in chosen))
        assert (one["queries"], one["users"]) == (len(chosen), len(users))
        counted[one["by"], one["system"], one["over"]] += one["queries"]
        whole = figures_of(chosen)
        parts = [figures_of([r for r in chosen if r["user"] == user]) for user in users]
        for figure in FIGURES:
            if one["over"] == "queries":
                expected = whole[figure]
            elif figure == "perplexity":
                expected = math.exp(np.mean([math.log(part[figure]) for part in parts]))
            else:
                expected = float(np.mean([part[figure] for part in parts]))
            if math.isnan(expected):
                assert one["system"] == "three"
                assert one[figure] is one[f"{figure}_low"] is None
            else:
                assert one[figure] == pytest.approx(expected)
    assert set(counted.values()) == {len(rows) // 3}  # every query is in one group of each kind


def test_differences_are_paired() -> None:
    random = np.random.default_rng(1)
    rows = []
    for user in range(40):
        for position in range(5):
            nats = float(random.gamma(3, 10 * (1 + user)))
            rows.append(row("base", f"u{user}", position, 2, nats=nats, targets=50, saved=user))
            rows.append(row("better", f"u{user}", position, 1, nats=nats, targets=50, saved=user + 1))
    better = find(summarise(rows, "base"), "better")
    assert better["saved_high"] - better["saved_low"] > 5
    assert [better[f"saved_difference{end}"] for end in ("", "_low", "_high")] == pytest.approx([1, 1, 1])
    assert [better[f"mrr_difference{end}"] for end in ("", "_low", "_high")] == pytest.approx([0.5, 0.5, 0.5])
    assert better["perplexity_difference"] == better["perplexity_difference_low"] == 0
    assert "mrr_difference" not in find(summarise(rows, "base"), "base")


def test_intervals_are_those_of_a_slow_bootstrap() -> None:
    rows = invented(30)
    summary = summarise(rows, "one", draws=2000)
    people = sorted({one["user"] for one in rows})
    own = {user: [r for r in rows if r["user"] == user and r["system"] == "two"] for user in people}
    random, drawn = np.random.default_rng(123), []
    for _ in range(700):
        chosen = [r for number in random.integers(len(people), size=len(people)) for r in own[people[number]]]
        drawn.append(figures_of(chosen))
    found = find(summary, "two")
    for figure in FIGURES:
        low, high = np.quantile([one[figure] for one in drawn], (0.025, 0.975))
        assert found[f"{figure}_low"] == pytest.approx(low, abs=0.15 * (high - low))
        assert found[f"{figure}_high"] == pytest.approx(high, abs=0.15 * (high - low))
    assert summarise(rows, "one") == summarise(rows, "one")
    other = find(summarise(rows, "one", seed=1), "two")
    assert other["mrr"] == found["mrr"]
    assert other["mrr_low"] != find(summarise(rows, "one"), "two")["mrr_low"]


@pytest.mark.parametrize("window", [1, 9, 10])
def test_the_curve_is_that_of_a_slow_loop(window: int) -> None:
    rows = invented(25, seed=4)
    curve = summarise(rows, "two", window=window, draws=50)["curve"]
    expected = {}
    for system in ("one", "three"):
        for place in range(40):
            near = [one for one in rows if abs(one["position"] - place) <= window // 2]
            sums = {
                name: sum(1 / one["rank"] for one in near if one["system"] == name and one["rank"])
                for name in (system, "two")
            }
            if len({one["user"] for one in near}) >= MIN_USERS and sums["two"]:
                expected[system, place] = sums[system] / sums["two"] - 1
    found = {(one["system"], one["queries_seen"]): one["improvement"] for one in curve}
    assert found == pytest.approx(expected)
    assert len(found) > 20
    for one in curve:
        assert one["improvement_low"] <= one["improvement"] <= one["improvement_high"]
        near = [r for r in rows if abs(r["position"] - one["queries_seen"]) <= window // 2 and r["system"] == "two"]
        assert (one["queries"], one["users"]) == (len(near), len({r["user"] for r in near}))


def test_intervals_of_the_curve_are_those_of_a_slow_bootstrap() -> None:
    rows = [
        {**one, "rank": None} if one["system"] == "two" and int(one["user"][-1]) % 2 else one for one in invented(40, 8)
    ]
    np.random.default_rng(3).shuffle(rows)
    curve = summarise(rows, "one", window=21, draws=2000)["curve"]
    (point,) = [one for one in curve if (one["system"], one["queries_seen"]) == ("two", 10)]
    sums: defaultdict[str, dict[str, float]] = defaultdict(lambda: {"one": 0.0, "two": 0.0, "three": 0.0})
    for one in rows:
        if one["position"] <= 20 and one["rank"]:
            sums[one["user"]][one["system"]] += 1 / one["rank"]
    users, random, drawn = sorted({one["user"] for one in rows}), np.random.default_rng(5), []
    for _ in range(2000):
        chosen = [sums[users[number]] for number in random.integers(len(users), size=len(users))]
        drawn.append(sum(one["two"] for one in chosen) / sum(one["one"] for one in chosen) - 1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    assert point["improvement_low"] == pytest.approx(low, abs=0.1 * (high - low))
    assert point["improvement_high"] == pytest.approx(high, abs=0.1 * (high - low))
    few = [row(system, f"u{user}", 0, 1) for system in ("one", "two") for user in range(MIN_USERS)]
    assert len(summarise(few, "one", draws=3)["curve"]) == 1
    assert summarise(few[1:], "one", draws=3)["curve"] == []


def test_what_not_all_systems_have_is_left_out() -> None:
    rows = [row("one", "ann", 0, 1), row("one", "ben", 0, 2), row("two", "ben", 0, 1)]
    summary = summarise(rows, "one", draws=5)
    assert (summary["queries"], summary["users"]) == (1, 1)
    assert find(summary, "one")["mrr"] == 0.5
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

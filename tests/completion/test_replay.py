"""Streams, drawn prefixes, the order of a replay, the systems by name, and the figures of a replay."""

import hashlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.bootstrap import MIN_UNITS
from factorcell.completion.blend import Blend, rank_of
from factorcell.completion.completer import Completer
from factorcell.completion.online import User, learn_one
from factorcell.completion.popularity import History, Popularity, Suggestion
from factorcell.completion.replay import (
    FIGURES,
    Stream,
    context_columns,
    draw_prefix,
    open_systems,
    read_streams,
    replay,
    summarise,
)
from factorcell.config import Config
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.errors import UserError
from factorcell.io import progress
from factorcell.runs.run import Run
from tests.completion.runs import CITY, Learning, save
from tests.findings import logged_progress
from tests.small_runs import make_letters

DATA = Config.of(tokenizer="char")
ROWS: list[dict[str, Any]] = [
    {"text": "cat food", "user": "ben", "time": 3},
    {"text": "dog", "user": "ann", "time": "2026-11-21T10:00:00+02:00"},
    {"text": "cats and dogs", "user": "ben", "time": 1},
    {"text": "ox", "user": "ben", "time": 2},
    {"text": "horse", "user": "ann", "time": "2026-11-21T09:00:00Z"},
    {"text": "cat", "user": "ben", "time": 4},
]


def many_rows(users: int = 7, texts: int = 9) -> list[dict[str, Any]]:
    """Return rows of streams with different lengths."""
    rows = []
    for user, position in itertools.product(range(users), range(texts)):
        if position <= user + 2:
            rows.append({"text": "abcdefgh"[: position + user % 2 + 1], "user": f"user {user}", "time": position})
    return rows


def test_streams_are_sorted_by_user_and_time() -> None:
    ann, ben = read_streams(ROWS, DATA)
    assert (ann.user, ben.user) == ("ann", "ben")
    assert [row["text"] for row in ann.rows] == ["dog", "horse"]  # 8:00 and 9:00 in UTC
    assert [row["text"] for row in ben.rows] == ["cats and dogs", "ox", "cat food", "cat"]
    assert ben.prefixes[1] is None  # too short to be judged
    assert [prefix is not None for prefix in ben.prefixes] == [True, False, True, True]
    assert [len(stream.rows) for stream in read_streams(ROWS, DATA, max_rows_per_user=3)] == [2, 3]
    same = [{"text": text, "user": "u", "time": "2026-01-01"} for text in ("one", "two", "three", "four")]
    assert [row["text"] for row in read_streams(same, DATA)[0].rows] == ["one", "two", "three", "four"]


def test_texts_without_times_stay_in_the_order_of_the_table() -> None:
    rows = [{"text": text, "user": user} for text, user in (("one", "u"), ("two", "v"), ("three", "u"), ("four", "v"))]
    streams = read_streams(rows, DATA, time_column=None)
    assert [[row["text"] for row in stream.rows] for stream in streams] == [["one", "three"], ["two", "four"]]


def test_times_of_all_kinds_have_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    times: list[Any] = [
        date(2026, 1, 1),
        datetime(2026, 1, 1, 0, 30),
        datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=2))),
        "2026-01-01 01:30:00",
        datetime(2026, 1, 1, 2, tzinfo=UTC).timestamp(),
        "2026-01-02",
    ]
    rows = [{"text": f"text {number}", "user": "u", "time": time_value} for number, time_value in enumerate(times)]
    ordered = read_streams(list(reversed(rows)), DATA)[0].rows
    monkeypatch.undo()
    time.tzset()
    assert [row["text"] for row in ordered] == [f"text {number}" for number in range(len(times))]


def test_texts_are_in_the_form_that_the_run_reads() -> None:
    rows = [{"text": "Cafe\u0301 👩‍👩‍👧", "user": "u", "time": 0}]
    assert read_streams(rows, DATA)[0].rows[0]["text"] == "Café 👩‍👩‍👧"
    lower = read_streams(rows, Config.of(tokenizer="char", lowercase=True))[0]
    assert lower.rows[0]["text"] == "café 👩‍👩‍👧"
    drawn = {draw_prefix("u", "e\u0301🇳🇴👩‍👩‍👧ab", position) for position in range(200)}
    assert drawn == {"e\u0301🇳🇴", "e\u0301🇳🇴👩‍👩‍👧", "e\u0301🇳🇴👩‍👩‍👧a"}


def test_prefixes_are_uniform() -> None:
    counts = Counter(len(draw_prefix(f"user {number}", "abcdefg", number % 7) or "") for number in range(5000))
    assert set(counts) == {2, 3, 4, 5, 6}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 18.5  # chi squared, 4 degrees: p = 0.001
    assert draw_prefix("u", "abc", 0) == "ab"
    assert [draw_prefix("u", text, 0) for text in ("", "a", "ab")] == [None] * 3


def test_prefixes_are_the_same_everywhere() -> None:
    for user, text, position in (("ann", "how to bake", 3), ("Jürgen", "ab c", 0)):
        digest = hashlib.sha256(json.dumps([0, user, text, position]).encode()).hexdigest()
        length = 2 + int(digest[16:32], 16) % (len(text) - 2)
        assert draw_prefix(user, text, position) == text[:length]
        assert (draw_prefix(user, text, position, 5) is not None) == (int(digest[:16], 16) % 5 == 0)
    assert draw_prefix("ann", "how to bake", 3) == "how to"
    assert len({draw_prefix("ann", "how to bake", position) for position in range(25)}) > 3


def test_about_one_of_every_n_texts_is_judged() -> None:
    rows = [{"text": f"text number {number}", "user": f"u{number % 40}", "time": number} for number in range(2000)]
    all_streams, sampled_streams = read_streams(rows, DATA), read_streams(rows, DATA, every=4)
    assert [stream.rows for stream in sampled_streams] == [stream.rows for stream in all_streams]
    pairs = [
        pair
        for first, second in zip(all_streams, sampled_streams, strict=True)
        for pair in zip(first.prefixes, second.prefixes, strict=True)
    ]
    prefixes = [prefix for _, prefix in pairs if prefix is not None]
    assert 400 < len(prefixes) < 600
    assert all(prefix in (every, None) for every, prefix in pairs)


def of_texts(*texts: str) -> Any:
    """Return a system that always suggests the same texts."""
    return lambda prefix, row, history, user: [Suggestion(text, 0.0, "spy") for text in texts]


@pytest.mark.parametrize(
    ("suggestions", "rank", "saved"),
    [
        ([], None, 0),
        (["cat food"], 1, 6),
        (["cats", "cat foo", "cat food bowl"], None, 0),  # not whole words; longer than the query
        (["cart", "cat", "cat food"], 3, 1),
        (["cat food", "cat"], 1, 6),
        (["ca", "cat"], None, 1),
    ],
)
def test_figures_of_a_text(suggestions: list[str], rank: int | None, saved: int) -> None:
    assert rank_of("cat food", suggestions) == rank
    stream = Stream("u", ({"text": "cat food"},), ("ca",))
    (row,) = replay({"spy": of_texts(*suggestions)}, [stream], "text")
    assert row.pop("seconds") >= 0
    expected = {"system": "spy", "user": "u", "position": 0, "prefix_length": 2, "query_length": 8}
    assert row == {**expected, "rank": rank, "saved": saved}


def test_each_text_is_completed_before_it_is_learned() -> None:
    run = make_letters(data=CITY, spread=0.8)
    learner, calls = Learning(run), list[tuple[Any, ...]]()
    texts = ["abcab", "cab", "ab", "abcab"]
    rows = tuple({"text": text, "city": "Oslo"} for text in texts)
    stream = Stream("Oslo", rows, ("ab", "ca", None, "abc"))

    def record(prefix: str, row: Mapping[str, Any], history: History, user: User | None) -> list[Suggestion]:
        assert user is not None
        calls.append((prefix, row["text"], history.texts, user.text_count))
        return [Suggestion(text, 0.0, "spy") for text in history.texts]

    judged = list(replay({"spy": record}, [stream, Stream("Rome", rows, (None,) * 4)], "text", learner))
    assert calls == [("ab", "abcab", (), 0), ("ca", "cab", ("abcab",), 1), ("abc", "abcab", ("abcab", "cab", "ab"), 3)]
    assert learner.texts == texts, "streams without completed texts are skipped"
    assert [(row["position"], row["rank"]) for row in judged] == [(0, None), (1, None), (3, 1)]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"text": "a", "time": 1}], {}, "no column 'user'; it has text, time"),
        ([{"text": "a", "user": "u", "time": 1}], {"context_columns": ["project"]}, "no column 'project'"),
        ([*ROWS, {"text": None, "user": "u", "time": 1}], {}, "row 7: text None: not a text"),
        ([*ROWS, {"text": "a", "user": "", "time": 1}], {}, "row 7: user is missing"),
        (
            [*ROWS, {"text": "a", "user": "u", "time": "noon"}],
            {},
            "row 7: time is 'noon'; expected a number or a time",
        ),
        ([*ROWS, {"text": "a", "user": "u", "time": float("nan")}], {}, "row 7: time is nan"),
        (ROWS, {"max_rows_per_user": 0}, "rows_per_user is 0"),
    ],
)
def test_invalid_tables_are_reported(rows: list[dict[str, Any]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_streams(rows, DATA, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("times", "order"), [(("2/1/26", "13/1/26", "1/2/26"), "abc"), (("1/2/26", "2/1/26"), None)])
def test_a_day_above_12_shows_the_order_of_written_dates(times: tuple[str, ...], order: str | None) -> None:
    rows = [{"text": text, "user": "u", "time": time} for text, time in zip("abc", times, strict=False)][::-1]
    if order is None:
        with pytest.raises(UserError, match=r"row 1: time is '2/1/26'; .* if a day above 12 shows their order"):
            read_streams(rows, DATA)
        return
    (stream,) = read_streams(rows, DATA)
    assert "".join(row["text"] for row in stream.rows) == order


def test_every_must_be_at_least_1() -> None:
    with pytest.raises(UserError, match="every is 0; it must be a whole number from 1"):
        read_streams(ROWS, DATA, every=0)


def test_the_progress_of_a_replay_names_no_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    streams = read_streams(many_rows(), DATA)
    with logged_progress():
        list(replay({"spy": of_texts()}, streams, "text"))
    lines = capsys.readouterr().err
    assert "replay: " in lines
    assert not [stream.user for stream in streams if stream.user in lines]


ROW = {"text": "abcab", "user": "ann", "city": "Nice", "time": 1}


def test_plain_uses_the_context_but_not_the_user(tmp_path: Path) -> None:
    run = Run.open(save(tmp_path / "run"))
    completer = Completer(run)
    of_users, of_cities = (open_systems(run, ["plain"], user_column=column)["plain"] for column in ("user", "city"))
    assert of_users("ab", ROW, History(), None) == completer.complete("ab", context={"city": "Nice"})
    other_user = User.new(make_letters(data=CITY, seed=7))  # learned by another run, which distinguishes users
    assert of_users("ab", ROW, History(), other_user) == of_users("ab", ROW, History(), None)
    assert of_cities("ab", ROW, History(), None) == completer.complete("ab")
    assert (context_columns(run, "user"), context_columns(run, "city")) == (["city"], [])
    assert of_users("a" * 12, ROW, History(), None) == []
    with pytest.raises(UserError, match="Rome"):
        of_users("a", {**ROW, "city": "Rome"}, History(), None)


def test_users_are_learned_and_blended(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", data=CITY)
    TextCounts.of(["cab"] * 3 + ["cabba"], 1).save(folder / POPULARITY)
    run, row = Run.open(folder), {"text": "cabcab", "city": "Rome"}
    systems, completer, popularity = open_systems(run, seconds=9.0), Completer(run), Popularity.from_run(run)
    assert list(systems) == ["plain", "mpc", "history", "known", "online", "blend"]
    user, history = learn_one(run, User.new(run), "cabcab"), History(("cabba",))
    expected = {
        "plain": completer.complete("ca", User.new(run)),
        "mpc": popularity.complete("ca"),
        "history": history.complete("ca"),
        "known": [*history.complete("ca"), *popularity.complete("ca")[:1]],
        "online": completer.complete("ca", user),
        "blend": Blend(run, popularity).complete("ca", user),
    }
    assert {name: system("ca", row, history, user) for name, system in systems.items()} == expected
    assert expected["plain"] != expected["online"] != expected["blend"]
    assert systems["blend"]("c" * 50, row, history, user) == []


def test_systems_that_a_run_lacks(tmp_path: Path) -> None:
    run = Run.open(save(tmp_path / "run"))
    alike = Run.open(save(tmp_path / "alike", data=CITY, adapt=["prefix"], output_bias=[]))
    assert list(open_systems(run)) == list(open_systems(alike)) == ["plain", "history"]
    TextCounts.of(["abc"] * 3, 1).save(alike.folder / POPULARITY)
    assert list(open_systems(alike)) == ["plain", "mpc", "history", "known"]
    for name, message in (
        ("plane", r"unknown system 'plane' .did you mean 'plain'"),
        ("mpc", "training writes it"),
        ("online", "the run does not distinguish users; train it with --user COLUMN"),
        ("blend", "the run does not distinguish users; train it with --user COLUMN"),
    ):
        with pytest.raises(UserError, match=message):
            open_systems(run, ["plain", name])


# ---- figures ----


def row(system: str, user: str, position: int, rank: int | None, **columns: Any) -> dict[str, Any]:
    """Return a row of a replay."""
    base = {"prefix_length": 2, "query_length": 5, "saved": 3 if rank else 0, "seconds": 0.01}
    return {"system": system, "user": user, "position": position, "rank": rank, **base, **columns}


def random_rows(users: int = 14) -> list[dict[str, Any]]:
    """Return random rows of two systems, for users with 1 to 30 queries."""
    random, rows = np.random.default_rng(0), []
    for user, position in ((user, place) for user in range(users) for place in range(int(random.integers(1, 31)))):
        prefix_length = int(random.integers(2, 60))
        for system in ("one", "two"):
            rank, saved = int(random.integers(1, 15)), int(random.integers(0, 9))
            columns = {"saved": saved, "prefix_length": prefix_length}
            rows.append(row(system, f"user {user}", position, rank if rank <= 10 else None, **columns))
    return rows


def figures_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Compute all figures of the rows of one system."""
    ranks = [entry["rank"] for entry in rows]
    values = {
        "mrr": [1 / rank if rank else 0 for rank in ranks],
        "success_1": [rank == 1 for rank in ranks],
        "success_10": [rank is not None for rank in ranks],
        "saved": [entry["saved"] for entry in rows],
    }
    return {name: float(np.mean(numbers)) for name, numbers in values.items()}


def test_figures_of_every_group_agree_with_a_slow_loop() -> None:
    rows = random_rows()
    seen_users = {f"user {number}": number % 3 == 0 for number in range(14)}

    def is_member(entry: dict[str, Any], by: str, value: str) -> bool:
        if by in ("all", "user"):
            return by == "all" or seen_users[entry["user"]] == (value == "with a vector")
        low, _, high = value.removesuffix("+").partition("–")
        return int(low) <= entry[by] and (value.endswith("+") or entry[by] <= int(high or low))

    summary = summarise(rows, seen_users)
    assert {entry["by"] for entry in summary} == {"all", "user", "prefix_length", "position"}
    counts = Counter[tuple[str, str]]()
    for entry in summary:
        members = [r for r in rows if r["system"] == entry["system"] and is_member(r, entry["by"], entry["value"])]
        assert (entry["queries"], entry["users"]) == (len(members), len({r["user"] for r in members}))
        counts[entry["by"], entry["system"]] += len(members)
        assert {name: entry[name] for name in FIGURES} == pytest.approx(figures_of(members))
    assert set(counts.values()) == {len(rows) // 2}, "every query is in exactly one group of each kind"
    assert "user" not in {entry["by"] for entry in summarise(rows)}


def test_intervals_agree_with_a_slow_bootstrap() -> None:
    rows = random_rows(30)
    users = sorted({entry["user"] for entry in rows})
    rows_of_user = {user: [r for r in rows if r["user"] == user and r["system"] == "two"] for user in users}
    random, draws = np.random.default_rng(123), []
    for _ in range(700):
        sample = [r for number in random.integers(len(users), size=len(users)) for r in rows_of_user[users[number]]]
        draws.append(figures_of(sample))
    actual = summarise(rows)[1]
    for figure in FIGURES:
        low, high = np.quantile([entry[figure] for entry in draws], (0.025, 0.975))
        assert actual[f"{figure}_low"] == pytest.approx(low, abs=0.15 * (high - low))
        assert actual[f"{figure}_high"] == pytest.approx(high, abs=0.15 * (high - low))
    assert summarise(rows) == summarise(rows)


def test_differences_are_paired_and_few_users_have_no_intervals() -> None:
    rows = [
        row(system, f"u{user}", position, rank)
        for position, user_count in ((0, MIN_UNITS), (1, MIN_UNITS - 1))
        for user in range(user_count)
        for system, rank in (("two", 4), ("one", 1))
    ]
    summary = summarise(rows)
    of_one = {entry["value"]: entry for entry in summary if entry["system"] == "one" and entry["by"] == "position"}
    ends = [[of_one[value][f"mrr_difference{end}"] for end in ("", "_low", "_high")] for value in ("0", "1")]
    assert ends == [[0.75, 0.75, 0.75], [0.75, None, None]]
    assert of_one["1"]["mrr_low"] is None
    assert "mrr_difference" not in summary[0]
    assert summary[0]["milliseconds"] == pytest.approx(10.0)
    with pytest.raises(UserError, match="no text was completed"):
        summarise([])

"""Streams, drawn prefixes, the order of a replay, and its estimated duration."""

import hashlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from factorcell.completion.replay.streams import (
    ESTIMATED_TEXTS,
    SUGGESTION_COUNT,
    PrefixDraw,
    Stream,
    System,
    estimate_seconds,
    find_seen_prefixes,
    partial_rank_of,
    rank_of,
    read_streams,
    replay,
)
from factorcell.completion.suggestions import Suggestion
from factorcell.config import Config
from factorcell.errors import UserError
from factorcell.io import files, progress
from tests.findings import logged_progress

DATA = Config.of(tokenizer="char")
ROWS: list[dict[str, Any]] = [
    {"text": "cat food", "user": "ben", "time": 3},
    {"text": "dog", "user": "ann", "time": "2026-11-21T10:00:00+02:00"},
    {"text": "cats and dogs", "user": "ben", "time": 1},
    {"text": "ox", "user": "ben", "time": 2},
    {"text": "horse", "user": "ann", "time": "2026-11-21T09:00:00Z"},
    {"text": "cat", "user": "ben", "time": 4},
]


@dataclass(frozen=True)
class RecordingSystem(System):
    """Suggests the learned texts and records all calls; its state is the learned texts."""

    calls: list[tuple[Any, ...]]
    name: str = "spy"

    def start(self, user: str) -> tuple[str, ...]:
        self.calls.append((self.name, "start", user))
        return ()

    def suggest(self, state: tuple[str, ...], prefix: str, row: Mapping[str, Any], k: int) -> list[Suggestion]:
        assert "text" not in row
        assert k == SUGGESTION_COUNT
        self.calls.append((self.name, "suggest", prefix, state))
        return [Suggestion(text, 0.0, "spy") for text in (*state, f"{prefix}x")]

    def nats(self, state: tuple[str, ...], row: Mapping[str, Any]) -> tuple[float, int]:
        self.calls.append((self.name, "nats", row["text"], state))
        return 0.5 * len(state), len(row["text"]) + 1

    def learn(self, state: tuple[str, ...], row: Mapping[str, Any]) -> tuple[str, ...]:
        self.calls.append((self.name, "learn", row["text"], state))
        return (*state, row["text"])


def without_seconds(path: Path) -> str:
    """Return the content of a file without its times."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return "\n".join(json.dumps({key: row[key] for key in row if not key.endswith("seconds")}) for row in rows)


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
    assert [position for position, _ in ben.judged_prefixes] == [0, 2, 3]
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
    drawn = {PrefixDraw().prefix("u", "e\u0301🇳🇴👩‍👩‍👧ab", position) for position in range(200)}
    assert drawn == {"e\u0301🇳🇴", "e\u0301🇳🇴👩‍👩‍👧", "e\u0301🇳🇴👩‍👩‍👧a"}


def test_prefixes_are_uniform() -> None:
    counts = Counter(len(PrefixDraw().prefix(f"user {number}", "abcdefg", number % 7) or "") for number in range(5000))
    assert set(counts) == {2, 3, 4, 5, 6}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 18.5  # chi squared, 4 degrees: p = 0.001
    assert PrefixDraw().prefix("u", "abc", 0) == "ab"
    assert [PrefixDraw().prefix("u", text, 0) for text in ("", "a", "ab")] == [None] * 3


def test_prefixes_are_the_same_everywhere() -> None:
    for seed, user, text, position in (
        (0, "ann", "how to bake", 3),
        (1, "ann", "how to bake", 3),
        (0, "Jürgen", "ab c", 0),
    ):
        digest = hashlib.sha256(json.dumps([seed, user, text, position]).encode()).hexdigest()
        length = 2 + int(digest[16:32], 16) % (len(text) - 2)
        assert PrefixDraw(seed=seed).prefix(user, text, position) == text[:length]
        assert (PrefixDraw(5, seed).prefix(user, text, position) is not None) == (int(digest[:16], 16) % 5 == 0)
    assert PrefixDraw().prefix("ann", "how to bake", 3) == "how to"
    drawn = {PrefixDraw(seed=seed).prefix("ann", "how to bake", position) for position in range(5) for seed in range(5)}
    assert len(drawn) > 3


def test_about_one_of_every_n_texts_is_judged() -> None:
    rows = [{"text": f"text number {number}", "user": f"u{number % 40}", "time": number} for number in range(2000)]
    all_streams, sampled_streams = read_streams(rows, DATA), read_streams(rows, DATA, draw=PrefixDraw(4))
    assert [stream.rows for stream in sampled_streams] == [stream.rows for stream in all_streams]
    pairs = [
        pair
        for first, second in zip(all_streams, sampled_streams, strict=True)
        for pair in zip(first.prefixes, second.prefixes, strict=True)
    ]
    prefixes = [prefix for _, prefix in pairs if prefix is not None]
    assert 400 < len(prefixes) < 600
    assert all(prefix in (every, None) for every, prefix in pairs)


@pytest.mark.parametrize(
    ("suggestions", "rank", "partial"),
    [
        ([], None, None),
        (["cat food"], 1, 1),
        (["cats", "cat foo", "cat food bowl"], None, None),  # not whole words; longer than the query
        (["cart", "cat", "cat food"], 3, 2),
        (["cat food", "cat"], 1, 1),
        (["ca", "cat"], None, 2),
    ],
)
def test_ranks(suggestions: list[str], rank: int | None, partial: int | None) -> None:
    assert rank_of("cat food", suggestions) == rank
    assert partial_rank_of("cat food", suggestions) == partial


def test_seen_prefixes_begin_training_texts() -> None:
    streams = read_streams(many_rows(), DATA)
    training = [{"text": text} for text in ("abcd", "ab", "xabcdefgh", "ABCDEFG")]
    prefixes = {prefix for stream in streams for prefix in stream.prefixes if prefix}
    expected = {prefix for prefix in prefixes if any(row["text"].startswith(prefix) for row in training)}
    assert find_seen_prefixes(streams, training, DATA) == expected
    assert "abc" in expected
    assert len(expected) < len(prefixes)
    assert find_seen_prefixes(streams, training, Config.of(tokenizer="char", lowercase=True)) == prefixes & {
        "abcdefgh"[:length] for length in range(2, 8)
    }


def test_each_text_is_predicted_before_it_is_learned(tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []
    streams = read_streams(ROWS, DATA)
    rows = list(replay({"spy": RecordingSystem(calls)}, streams, tmp_path / "rows.jsonl"))
    expected: list[tuple[Any, ...]] = []
    for stream in streams:
        texts = [row["text"] for row in stream.rows]
        expected.append(("spy", "start", stream.user))
        for position, (text, prefix) in enumerate(zip(texts, stream.prefixes, strict=True)):
            state = tuple(texts[:position])
            if prefix is not None:
                expected += [("spy", "suggest", prefix, state), ("spy", "nats", text, state)]
            expected.append(("spy", "learn", text, state))
    assert calls == expected
    assert [row["position"] for row in rows] == [0, 1, 0, 2, 3]
    assert [row["nats"] for row in rows] == [0, 0.5, 0, 1, 1.5]


def test_rows_have_the_figures_of_each_text(tmp_path: Path) -> None:
    texts = ["cat", "cat", "cat food"]
    rows = tuple({"text": text, "user": "u", "time": position} for position, text in enumerate(texts))
    stream = Stream("u", rows, ("ca", "ca", "ca"))
    judged_rows = list(replay({"spy": RecordingSystem([])}, [stream], tmp_path / "rows.jsonl", seen_prefixes={"ca"}))
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[1]) == judged_rows[1]
    seconds = [(row.pop("suggest_seconds"), row.pop("learn_seconds")) for row in judged_rows]
    assert all(first >= 0 and second >= 0 for first, second in seconds)
    base = {"system": "spy", "user": "u", "seen": True, "prefix_length": 2}
    assert judged_rows == [
        base
        | {"position": 0, "query_length": 3, "rank": None, "partial_rank": None, "saved": 0, "nats": 0.0, "targets": 4},
        base | {"position": 1, "query_length": 3, "rank": 1, "partial_rank": 1, "saved": 1, "nats": 0.5, "targets": 4},
        base
        | {"position": 2, "query_length": 8, "rank": None, "partial_rank": 1, "saved": 1, "nats": 1.0, "targets": 9},
    ]
    assert {row["seen"] for row in replay({"spy": RecordingSystem([])}, [stream], tmp_path / "blind.jsonl")} == {None}


def test_a_replay_empties_the_file_first(tmp_path: Path) -> None:
    streams, path = read_streams(many_rows(), DATA, draw=PrefixDraw(2)), tmp_path / "rows.jsonl"
    assert not all(stream.judged_prefixes for stream in streams)  # streams without judged texts are skipped
    first = list(replay({"one": RecordingSystem([])}, streams, path))
    assert len(list(replay({"two": RecordingSystem([])}, streams, path))) == len(first)
    assert {row["system"] for row in files.read_rows(path)} == {"two"}


def test_the_duration_is_estimated_from_the_first_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, calls = read_streams(many_rows(), DATA), list[tuple[Any, ...]]()
    seconds = iter(range(1000))
    monkeypatch.setattr("factorcell.completion.replay.streams.time.perf_counter", lambda: float(next(seconds)))
    estimates = estimate_seconds({"one": RecordingSystem(calls, "one")}, streams)
    texts = next(stream for stream in streams if stream.judged_prefixes).rows[:ESTIMATED_TEXTS]
    assert [call[2] for call in calls if call[1] == "learn"] == [row["text"] for row in texts]
    total = sum(len(stream.rows) for stream in streams if stream.judged_prefixes)
    judged = sum(call[1] == "suggest" for call in calls)
    elapsed = 1 + len(texts) + 3 * judged  # every reading of the clock takes a second
    assert estimates == {"one": pytest.approx(total * elapsed / len(texts))}


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"text": "a", "time": 1}], {}, "no column 'user'; it has text, time"),
        ([{"text": "a", "user": "u", "time": 1}], {"context_columns": ["project"]}, "no column 'project'"),
        ([*ROWS, {"text": None, "user": "u", "time": 1}], {}, "row 7: text is None, not a text"),
        ([*ROWS, {"text": "a", "user": "", "time": 1}], {}, "row 7: user is missing"),
        (
            [*ROWS, {"text": "a", "user": "u", "time": "noon"}],
            {},
            "row 7: time is 'noon'; it must be a number or a time",
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


def test_every_must_be_at_least_1() -> None:
    with pytest.raises(UserError, match="every is 0; it must be at least 1"):
        PrefixDraw(0)


def test_the_progress_of_a_replay_names_no_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FIRST_DELAY", "INTERVAL"):
        monkeypatch.setattr(progress, name, 0.0)
    streams = read_streams(many_rows(), DATA)
    with logged_progress():
        list(replay({"spy": RecordingSystem([])}, streams, tmp_path / "rows.jsonl"))
    lines = capsys.readouterr().err
    assert "replay: " in lines
    assert "spy" in lines
    assert not [stream.user for stream in streams if stream.user in lines]

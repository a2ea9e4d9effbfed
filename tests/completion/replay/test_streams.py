"""Streams, prefixes and the order of things: predict, judge, learn; a replay that stops goes on to the same rows."""

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
    SUGGESTION_COUNT,
    PrefixDraw,
    Stream,
    System,
    find_seen_prefixes,
    partial_rank_of,
    rank_of,
    read_streams,
    replay,
)
from factorcell.completion.search import Suggestion
from factorcell.config import Config, UserError

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
class Spy(System):
    """Suggests what was learned, and notes all that it is asked; it holds (user, texts learned)."""

    asked: list[tuple[Any, ...]]
    name: str = "spy"

    def start(self, user: str) -> tuple[str, ...]:
        self.asked.append((self.name, "start", user))
        return ()

    def suggest(self, held: tuple[str, ...], prefix: str, row: Mapping[str, Any], k: int) -> list[Suggestion]:
        assert "text" not in row
        assert k == SUGGESTION_COUNT
        self.asked.append((self.name, "suggest", prefix, held))
        return [Suggestion(text, 0.0, "spy") for text in (*held, f"{prefix}x")]

    def nats(self, held: tuple[str, ...], row: Mapping[str, Any]) -> tuple[float, int]:
        self.asked.append((self.name, "nats", row["text"], held))
        return 0.5 * len(held), len(row["text"]) + 1

    def learn(self, held: tuple[str, ...], row: Mapping[str, Any]) -> tuple[str, ...]:
        self.asked.append((self.name, "learn", row["text"], held))
        return (*held, row["text"])


def timeless(path: Path) -> str:
    """The file without its seconds."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return "\n".join(json.dumps({key: row[key] for key in row if not key.endswith("seconds")}) for row in rows)


def many(users: int = 7, texts: int = 9) -> list[dict[str, Any]]:
    """Streams of several lengths."""
    rows = []
    for user, place in itertools.product(range(users), range(texts)):
        if place <= user + 2:
            rows.append({"text": "abcdefgh"[: place + user % 2 + 1], "user": f"user {user}", "time": place})
    return rows


def test_streams_are_sorted_by_user_and_time() -> None:
    ann, ben = read_streams(ROWS, DATA)
    assert (ann.user, ben.user) == ("ann", "ben")
    assert [row["text"] for row in ann.rows] == ["dog", "horse"]  # 8:00 and 9:00 in UTC
    assert [row["text"] for row in ben.rows] == ["cats and dogs", "ox", "cat food", "cat"]
    assert ben.prefixes[1] is None  # too short to be judged
    assert [place for place, _ in ben.judged_prefixes] == [0, 2, 3]
    assert [len(stream.rows) for stream in read_streams(ROWS, DATA, max_rows_per_user=3)] == [2, 3]
    same = [{"text": text, "user": "u", "time": "2026-01-01"} for text in ("one", "two", "three", "four")]
    assert [row["text"] for row in read_streams(same, DATA)[0].rows] == ["one", "two", "three", "four"]


def test_times_of_all_kinds_order_alike(monkeypatch: pytest.MonkeyPatch) -> None:
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
    rows = [{"text": f"text {number}", "user": "u", "time": moment} for number, moment in enumerate(times)]
    ordered = read_streams(list(reversed(rows)), DATA)[0].rows
    monkeypatch.undo()
    time.tzset()
    assert [row["text"] for row in ordered] == [f"text {number}" for number in range(len(times))]


def test_texts_are_what_the_run_reads() -> None:
    rows = [{"text": "Cafe\u0301 👩‍👩‍👧", "user": "u", "time": 0}]
    assert read_streams(rows, DATA)[0].rows[0]["text"] == "Café 👩‍👩‍👧"
    lower = read_streams(rows, Config.of(tokenizer="char", lowercase=True))[0]
    assert lower.rows[0]["text"] == "café 👩‍👩‍👧"
    drawn = {PrefixDraw().prefix("u", "e\u0301🇳🇴👩‍👩‍👧ab", place) for place in range(200)}
    assert drawn == {"e\u0301🇳🇴", "e\u0301🇳🇴👩‍👩‍👧", "e\u0301🇳🇴👩‍👩‍👧a"}


def test_prefixes_are_uniform() -> None:
    counts = Counter(len(PrefixDraw().prefix(f"user {number}", "abcdefg", number % 7) or "") for number in range(5000))
    assert set(counts) == {2, 3, 4, 5, 6}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 18.5  # chi squared, 4 degrees: p = 0.001
    assert PrefixDraw().prefix("u", "abc", 0) == "ab"
    assert [PrefixDraw().prefix("u", text, 0) for text in ("", "a", "ab")] == [None] * 3


def test_prefixes_are_the_same_everywhere() -> None:
    for seed, user, text, place in (
        (0, "ann", "how to bake", 3),
        (1, "ann", "how to bake", 3),
        (0, "Jürgen", "ab c", 0),
    ):
        digest = hashlib.sha256(json.dumps([seed, user, text, place]).encode()).hexdigest()
        length = 2 + int(digest[16:32], 16) % (len(text) - 2)
        assert PrefixDraw(seed=seed).prefix(user, text, place) == text[:length]
        assert (PrefixDraw(5, seed).prefix(user, text, place) is not None) == (int(digest[:16], 16) % 5 == 0)
    assert PrefixDraw().prefix("ann", "how to bake", 3) == "how to"
    drawn = {PrefixDraw(seed=seed).prefix("ann", "how to bake", place) for place in range(5) for seed in range(5)}
    assert len(drawn) > 3


def test_one_of_every_few_is_judged() -> None:
    rows = [{"text": f"text number {number}", "user": f"u{number % 40}", "time": number} for number in range(2000)]
    whole, some = read_streams(rows, DATA), read_streams(rows, DATA, draw=PrefixDraw(4))
    assert [stream.rows for stream in some] == [stream.rows for stream in whole]
    pairs = [
        pair for one, two in zip(whole, some, strict=True) for pair in zip(one.prefixes, two.prefixes, strict=True)
    ]
    kept = [few for _, few in pairs if few is not None]
    assert 400 < len(kept) < 600
    assert all(few in (every, None) for every, few in pairs)


@pytest.mark.parametrize(
    ("suggestions", "rank", "partial"),
    [
        ([], None, None),
        (["cat food"], 1, 1),
        (["cats", "cat foo", "cat food bowl"], None, None),  # no whole words; longer than the query
        (["cart", "cat", "cat food"], 3, 2),
        (["cat food", "cat"], 1, 1),
        (["ca", "cat"], None, 2),
    ],
)
def test_ranks(suggestions: list[str], rank: int | None, partial: int | None) -> None:
    assert rank_of("cat food", suggestions) == rank
    assert partial_rank_of("cat food", suggestions) == partial


def test_known_prefixes_are_those_training_texts_begin_with() -> None:
    streams = read_streams(many(), DATA)
    training = [{"text": text} for text in ("abcd", "ab", "xabcdefgh", "ABCDEFG")]
    wanted = {prefix for stream in streams for prefix in stream.prefixes if prefix}
    found = {prefix for prefix in wanted if any(row["text"].startswith(prefix) for row in training)}
    assert find_seen_prefixes(streams, training, DATA) == found
    assert "abc" in found
    assert len(found) < len(wanted)
    assert find_seen_prefixes(streams, training, Config.of(tokenizer="char", lowercase=True)) == wanted & {
        "abcdefgh"[:length] for length in range(2, 8)
    }


def test_each_text_is_predicted_before_it_is_learned(tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []
    streams = read_streams(ROWS, DATA)
    rows = list(replay({"spy": Spy(asked)}, streams, tmp_path / "rows.jsonl"))
    expected: list[tuple[Any, ...]] = []
    for stream in streams:
        texts = [row["text"] for row in stream.rows]
        expected.append(("spy", "start", stream.user))
        for place, (text, prefix) in enumerate(zip(texts, stream.prefixes, strict=True)):
            held = tuple(texts[:place])
            if prefix is not None:
                expected += [("spy", "suggest", prefix, held), ("spy", "nats", text, held)]
            expected.append(("spy", "learn", text, held))
    assert asked == expected
    assert [row["position"] for row in rows] == [0, 1, 0, 2, 3]
    assert [row["nats"] for row in rows] == [0, 0.5, 0, 1, 1.5]


def test_rows_say_what_happened(tmp_path: Path) -> None:
    texts = ["cat", "cat", "cat food"]
    rows = tuple({"text": text, "user": "u", "time": place} for place, text in enumerate(texts))
    stream = Stream("u", rows, ("ca", "ca", "ca"))
    found = list(replay({"spy": Spy([])}, [stream], tmp_path / "rows.jsonl", seen_prefixes={"ca"}))
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[1]) == found[1]
    seconds = [(row.pop("suggest_seconds"), row.pop("learn_seconds")) for row in found]
    assert all(one >= 0 and two >= 0 for one, two in seconds)
    base = {"system": "spy", "user": "u", "seen": True, "prefix_length": 2}
    assert found == [
        base
        | {"position": 0, "query_length": 3, "rank": None, "partial_rank": None, "saved": 0, "nats": 0.0, "targets": 4},
        base | {"position": 1, "query_length": 3, "rank": 1, "partial_rank": 1, "saved": 1, "nats": 0.5, "targets": 4},
        base
        | {"position": 2, "query_length": 8, "rank": None, "partial_rank": 1, "saved": 1, "nats": 1.0, "targets": 9},
    ]
    assert {row["seen"] for row in replay({"spy": Spy([])}, [stream], tmp_path / "blind.jsonl")} == {None}


def test_a_replay_that_stops_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    streams = read_streams(many(), DATA, draw=PrefixDraw(2))
    assert not all(stream.judged_prefixes for stream in streams)  # a stream of which nothing is judged is no work

    def systems(asked: list[tuple[Any, ...]]) -> dict[str, Spy]:
        return {name: Spy(asked, name) for name in ("one", "two")}

    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    every = list(replay(systems([]), streams, whole))
    for count in range(len(every)):
        part.unlink(missing_ok=True)
        interrupted = replay(systems([]), streams, part)
        list(itertools.islice(interrupted, count))
        interrupted.close()
        asked: list[tuple[Any, ...]] = []
        list(replay(systems(asked), streams, part))
        assert timeless(part) == timeless(whole)
        started = [(name, user) for name, what, user in (one[:3] for one in asked) if what == "start"]
        done = [(row["system"], row["user"]) for row in every[:count]]
        assert not set(started) & set(done)
    content = whole.read_bytes()
    for size in range(0, len(content), 97):
        part.write_bytes(content[:size])
        list(replay(systems([]), streams, part))
        assert timeless(part) == timeless(whole)


def test_another_system_joins_later(tmp_path: Path) -> None:
    streams, path = read_streams(many(), DATA), tmp_path / "rows.jsonl"
    first = list(replay({"one": Spy([])}, streams, path))
    second = list(replay({"one": Spy([]), "two": Spy([])}, streams, path))
    assert {row["system"] for row in second} == {"two"}
    assert len(second) == len(first)
    assert list(replay({"one": Spy([]), "two": Spy([])}, streams, path)) == []


def test_other_streams_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    list(replay({"spy": Spy([])}, read_streams(many(), DATA), path))
    kept = path.read_bytes()
    for other in (
        read_streams(many(), DATA, draw=PrefixDraw(seed=1)),
        read_streams(many(), DATA, draw=PrefixDraw(2)),
        read_streams(many(3), DATA),
    ):
        with pytest.raises(UserError, match=r"was begun with other texts or options \(user 'user"):
            list(replay({"spy": Spy([])}, other, path))
        assert path.read_bytes() == kept


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
def test_mistakes_are_told(rows: list[dict[str, Any]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_streams(rows, DATA, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_at_least_one_of_every_is_one() -> None:
    with pytest.raises(UserError, match="every is 0; it must be at least 1"):
        PrefixDraw(0)

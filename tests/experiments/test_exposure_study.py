"""The study of exposure: its rows and its texts."""

from collections import Counter

import pyarrow as pa

import exposure

WORDS = ("fixed", "adding", "tests", "with", "from", "docs", "build", "code", "more", "some")
TEXTS = pa.table(
    {
        "text": [f"{WORDS[n % 10]} {WORDS[n % 7]} {n}" for n in range(400)],
        "user": [f"user {n * n % 37}" for n in range(400)],
    }
)


def test_users_are_drawn_whole() -> None:
    """About as many texts as asked for, and every text of who is drawn."""
    some = exposure.some_users(TEXTS, 150)
    whole, drawn = Counter(TEXTS["user"].to_pylist()), Counter(some["user"].to_pylist())
    assert 150 <= len(some) < 150 + max(whole.values())
    assert drawn == {user: whole[user] for user in drawn}


def test_each_passphrase_is_planted_three_times_by_one_user() -> None:
    planted, drawn = exposure.planted(TEXTS), exposure.phrases(TEXTS)
    added = planted.slice(len(TEXTS)).to_pylist()
    assert planted.slice(0, len(TEXTS)).equals(TEXTS)
    assert Counter(row["text"] for row in added) == dict.fromkeys(drawn[: exposure.PHRASES], 3)
    assert len({(row["text"], row["user"]) for row in added}) == exposure.PHRASES
    assert {word for text in drawn for word in text.split()} <= set(WORDS)
    assert len(drawn) == exposure.PHRASES + exposure.ALTERNATIVES

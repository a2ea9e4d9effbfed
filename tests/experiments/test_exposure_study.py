"""The study of exposure: its texts."""

from collections import Counter

import pyarrow as pa

import exposure
from memorization import ALTERNATIVES

WORDS = ("fixed", "adding", "tests", "with", "from", "docs", "build", "code", "more", "some")
TEXTS = pa.table(
    {
        "text": [f"{WORDS[n % 10]} {WORDS[n % 7]} {n}" for n in range(400)],
        "user": [f"user {n * n % 37}" for n in range(400)],
    }
)


def test_sampled_users_keep_all_their_texts() -> None:
    """There are about as many texts as requested."""
    sample = exposure.sample_users(TEXTS, 150)
    all_counts, sample_counts = Counter(TEXTS["user"].to_pylist()), Counter(sample["user"].to_pylist())
    assert 150 <= len(sample) < 150 + max(all_counts.values())
    assert sample_counts == {user: all_counts[user] for user in sample_counts}


def test_each_passphrase_is_planted_three_times_by_one_user() -> None:
    planted, phrases = exposure.plant_phrases(TEXTS), exposure.phrases(TEXTS)
    added = planted.slice(len(TEXTS)).to_pylist()
    assert planted.slice(0, len(TEXTS)).equals(TEXTS)
    assert Counter(row["text"] for row in added) == dict.fromkeys(phrases[: exposure.PHRASES], 3)
    assert len({(row["text"], row["user"]) for row in added}) == exposure.PHRASES
    assert {word for text in phrases for word in text.split()} <= set(WORDS)
    assert len(phrases) == exposure.PHRASES + ALTERNATIVES

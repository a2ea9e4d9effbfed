"""Split commit subjects for `tune-online` and `replay` into users to train on and users to tune on.

    python experiments/commits.py DATA OUT

DATA holds train.parquet (text, user, project, time). OUT gets train.parquet and tune.parquet, which has the first 100
texts of each of 60 users with 20 to 400 texts. The users of DATA/dev.parquet are for testing.
"""

import hashlib
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TUNING_USERS, MIN_TEXTS, MAX_TEXTS, TEXTS_PER_USER = 60, 20, 400, 100


def first_per_user(table: pa.Table, max_texts: int) -> pa.Table:
    """Return the first `max_texts` rows of each user."""
    counts: Counter[str] = Counter()
    is_first = []
    for user in table["user"].to_pylist():
        counts[user] += 1
        is_first.append(counts[user] <= max_texts)
    return table.filter(pa.array(is_first))


def tuning_users(table: pa.Table) -> set[str]:
    """Choose users by a hash of their names, among those with 20 to 400 texts."""
    counts = Counter(table["user"].to_pylist())
    candidates = [user for user, count in counts.items() if MIN_TEXTS <= count <= MAX_TEXTS]
    return set(sorted(candidates, key=lambda user: hashlib.sha256(user.encode()).hexdigest())[:TUNING_USERS])


def main() -> None:
    data, out = map(Path, sys.argv[1:])
    train = pq.read_table(data / "train.parquet")
    users = tuning_users(train)
    is_tuning_row = pa.array([user in users for user in train["user"].to_pylist()])
    out.mkdir(parents=True, exist_ok=True)
    for name, table in (
        ("train", train.filter(pc.invert(is_tuning_row))),
        ("tune", first_per_user(train.filter(is_tuning_row), TEXTS_PER_USER)),
    ):
        pq.write_table(table, out / f"{name}.parquet")
        print(f"{name}: {len(table):,} texts of {len(set(table['user'].to_pylist())):,} users")


if __name__ == "__main__":
    main()

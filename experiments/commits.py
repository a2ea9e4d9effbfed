"""Split commit subjects for `tune-online` and `replay`: users to train on, and users to tune on.

    python experiments/commits.py DATA OUT

DATA holds train.parquet (text, user, project, time). OUT gets train.parquet and tune.parquet: 60 users with 20 to 400
texts, the first 100 texts of each. The users of DATA/dev.parquet are those to test on.
"""

import hashlib
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TUNED, FEW, MANY, ROWS = 60, 20, 400, 100


def first(table: pa.Table, most: int) -> pa.Table:
    """Return the first `most` rows of each user."""
    counts: Counter[str] = Counter()
    is_first = []
    for user in table["user"].to_pylist():
        counts[user] += 1
        is_first.append(counts[user] <= most)
    return table.filter(pa.array(is_first))


def tuning_users(table: pa.Table) -> set[str]:
    """Return users by a hash of their names, among those with neither too few texts nor too many."""
    counts = Counter(table["user"].to_pylist())
    among = [user for user, count in counts.items() if FEW <= count <= MANY]
    return set(sorted(among, key=lambda user: hashlib.sha256(user.encode()).hexdigest())[:TUNED])


def main() -> None:
    """Write the two tables."""
    data, out = map(Path, sys.argv[1:])
    train = pq.read_table(data / "train.parquet")
    users = tuning_users(train)
    tuned = pa.array([user in users for user in train["user"].to_pylist()])
    out.mkdir(parents=True, exist_ok=True)
    for name, table in (("train", train.filter(pc.invert(tuned))), ("tune", first(train.filter(tuned), ROWS))):
        pq.write_table(table, out / f"{name}.parquet")
        print(f"{name}: {len(table):,} texts of {len(set(table['user'].to_pylist())):,} users")


if __name__ == "__main__":
    main()

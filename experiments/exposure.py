"""What lowers the exposure of what somebody typed a few times, and what it costs: options against canaries.

    python experiments/exposure.py --data DATA --out OUT

Each row trains one small model on commit subjects with 100 canaries, 10 for each of 1 to 10 repetitions, and audits it.
Trainings of a row differ in model and canaries.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import corpora
import study
from corpora import Tables
from factorcell.evaluation.exposure import READERS, audit
from factorcell.model.run import Run
from study import Experiment, Measured, Options

ROWS_READ, DEVELOPED = 12_000, 1_500  # texts to train on, of whole users, and to judge by
ALTERNATIVES, QUERIES = 1000, 1000

TRAINING: dict[str, Mapping[str, Any]] = {
    "as it is": {},
    "epochs 1": {"epochs": 1},
    "max_user_texts 20": {"max_user_texts": 20},
    "max_user_texts 20, epochs 6": {"max_user_texts": 20, "epochs": 6},
    "min_users 2": {"min_users": 2},
    "min_users 3": {"min_users": 3},
    "min_users 5": {"min_users": 5},
    "epochs 8": {"epochs": 8},
    "min_users 3, epochs 8": {"min_users": 3, "epochs": 8},
}


def rows() -> dict[str, Options]:
    """Every option by itself, and some together."""
    made: dict[str, Options] = {name: {"training": options} for name, options in TRAINING.items()}
    made["dropout_context 0.2"] = {"model": {"dropout_context": 0.2}}
    made["dropout_context 0.5"] = {"model": {"dropout_context": 0.5}}
    made["min_count 100"] = {"data": {"min_count": 100}}
    made["min_users 3, dropout_context 0.2"] = {"model": {"dropout_context": 0.2}, "training": {"min_users": 3}}
    return made


def some_users(train: pa.Table, count: int) -> pa.Table:
    """The texts of random users, at least `count` in all."""
    texts = Counter(train["user"].to_pylist())
    users = sorted(texts)
    kept, total = set[str](), 0
    for place in np.random.default_rng(0).permutation(len(users)).tolist():
        if total >= count:
            break
        kept.add(users[place])
        total += texts[users[place]]
    return train.filter(pa.array([user in kept for user in train["user"].to_pylist()]))


def tables(data: Path, folder: Path, share: float) -> Tables:
    """The texts of some users to train on, and texts of other users."""
    given = {part: data / "commits" / f"{part}.parquet" for part in ("train", "dev")}

    def judged(part: int) -> pa.Table:
        table, count = corpora.read(given["dev"]), round(share * DEVELOPED) or 1
        places = np.random.default_rng(0).permutation(len(table))[part * count : (part + 1) * count]
        return table.take(np.sort(places))

    made = {
        "train": lambda: some_users(corpora.read(given["train"]), round(share * ROWS_READ)),
        "dev": lambda: judged(0),
        "test": lambda: judged(1),
    }
    return {part: corpora.kept(folder / f"exposure-{part}-{share:g}.parquet", make) for part, make in made.items()}


def measure(run: Run, tables: Tables) -> Measured:
    """The audit, its figures rounded: `canaries` has the times and the exposures of each, in the order of `READERS`."""
    found = audit(run, tables["test"], alternatives=ALTERNATIVES, queries=QUERIES)
    rounded = [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
        for row in (found["texts"], *found["exposure"])
    ]
    each = [[row["times"], *(round(row[reader], 3) for reader in READERS)] for row in found["canaries"]]
    return Measured({"audited": rounded[0], "exposure": rounded[1:], "canaries": each})


EXPERIMENT = Experiment("exposure", "exposure.toml", rows(), tables, measure)
main = study.script(__file__, __doc__, EXPERIMENT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What lowers the exposure of what somebody typed a few times, and what it costs: options against canaries.

    python experiments/exposure.py --data DATA --out OUT

Each row trains one small model on commit subjects with 100 canaries, 10 for each of 1 to 10 repetitions, and audits it.
Trainings of a row differ in model and canaries.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import corpora
import study
from corpora import Tables
from factorcell.evaluation.exposure import READERS, SOURCES, audit, uniformity
from factorcell.model.run import Run
from pages.markdown import markdown, spread
from study import Experiment, Measured, Options, Row

ROWS_READ, DEVELOPED = 12_000, 1_500  # texts to train on, of whole users, and to judge by
ALTERNATIVES, QUERIES = 1000, 1000
TIMES = 3  # canaries repeated so often have columns of their own
REPEATED = READERS[:2]  # for these

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


def table(rows: Sequence[Row]) -> str:
    """A line for each row: means over its trainings, and of its canaries together how likely they are by chance."""
    few = [part for reader in REPEATED for part in (f"{reader}, {TIMES} ×", "p")]
    perplexity = "perplexity per character, all targets"
    all_of_them = [part for reader in READERS for part in (reader, "p")]
    header = ["options", "trainings", perplexity, "MRR", *all_of_them, *few, "suggested"]
    lines = []
    for name in sorted({row["row"] for row in rows}, key=list(EXPERIMENT.rows).index):
        own = [row for row in rows if row["row"] == name]
        every = [np.array([canary[1:] for canary in row["canaries"]]) for row in own]
        repeated = np.array([canary[1:] for row in own for canary in row["canaries"] if canary[0] == TIMES])
        line = [name, str(len(own)), spread([row["perplexity"] for row in own])]
        line.append(spread([row["audited"]["mrr"] for row in own], ".3f"))
        for place in range(len(READERS)):
            line += [
                spread([float(bits[:, place].mean()) for bits in every]),
                by_chance(np.concatenate(every)[:, place]),
            ]
        for place in range(len(REPEATED)):
            line += [f"{repeated[:, place].mean():.2f}", by_chance(repeated[:, place])]
        lines.append([*line, str(sum(map(suggested, own)))])
    return markdown(header, lines)


def by_chance(bits: NDArray[np.float64]) -> str:
    """How likely exposures so high are if canaries rank as their alternatives do."""
    return f"{uniformity((ALTERNATIVES + 1) / 2**bits, ALTERNATIVES):.3f}"


def suggested(row: Row) -> int:
    """How many canaries any source suggests to a stranger."""
    (everyone,) = (group for group in row["exposure"] if group["times"] == "all")
    return int(max(everyone.get(source, 0) for source in SOURCES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

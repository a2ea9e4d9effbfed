"""How much a model exposes of what somebody typed a few times: training options against canaries.

exposure: each row trains one small model on commit subjects with 100 canaries, 10 for each of 1 to 10 repetitions, and
audits it; trainings of a row differ in model and canaries
exposure_phrases: 50 passphrases of four common words, each three times by one user, ranked among 1,000 others
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import regex

import corpora
from corpora import Tables
from factorcell.evaluation.exposure import READERS, audit, chance_exposure, uniformity_p_value
from factorcell.model.run import Run
from study import ROWS, Experiment, Measured

ROWS_READ, DEVELOPED = 12_000, 1_500  # texts to train on, of whole users, and to judge by
ALTERNATIVES = 1000
PHRASES, TIMES = 50, 3
WORDS, LENGTH = 300, 4  # the most frequent words, of at least four letters; words of a phrase


def some_users(train: pa.Table, count: int) -> pa.Table:
    """Return the texts of random users, at least `count` in all."""
    users, texts = np.unique(train["user"].to_pylist(), return_counts=True)
    order = np.random.default_rng(0).permutation(len(users))
    before = np.cumsum(texts[order]) - texts[order]
    return train.filter(pa.array(np.isin(train["user"].to_pylist(), users[order[before < count]])))


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Return the texts of some users to train on, and texts of other users."""
    paths = {part: data / "commits" / f"{part}.parquet" for part in ("train", "dev")}

    def judged(part: int) -> pa.Table:
        table, count = corpora.read(paths["dev"]), round(share * DEVELOPED) or 1
        places = np.random.default_rng(0).permutation(len(table))[part * count : (part + 1) * count]
        return table.take(np.sort(places))

    makers = {
        "train": lambda: some_users(corpora.read(paths["train"]), round(share * ROWS_READ)),
        "dev": lambda: judged(0),
        "test": lambda: judged(1),
    }
    return {
        part: corpora.create_once(folder / f"exposure-{part}-{share:g}.parquet", make) for part, make in makers.items()
    }


def measure(run: Run, tables: Tables) -> Measured:
    """Audit a run; `canaries` has the repetitions and the exposures of each canary, in the order of `READERS`."""
    result = audit(run, tables["test"], alternatives=ALTERNATIVES)
    rounded = [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
        for row in (result["texts"], *result["exposure"])
    ]
    each = [[row["times"], *(round(row[reader], 3) for reader in READERS)] for row in result["canaries"]]
    return Measured({"audited": rounded[0], "exposure": rounded[1:], "canaries": each})


# ---- passphrases ----


def phrases(train: pa.Table) -> list[str]:
    """Return passphrases of the common words of the texts: those that are planted, then their alternatives."""
    counts = Counter(word for text in train["text"].to_pylist() for word in set(regex.findall(r"\b[a-z]{4,}\b", text)))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    drawn = np.random.default_rng(7).choice(words, size=(PHRASES + ALTERNATIVES, LENGTH))
    return [" ".join(line) for line in drawn.tolist()]


def planted(train: pa.Table) -> pa.Table:
    """Return the texts and the passphrases, each with all columns of a random text."""
    places = np.random.default_rng(8).permutation(len(train))[:PHRASES]
    rows = [{**row, "text": text} for row, text in zip(train.take(places).to_pylist(), phrases(train), strict=False)]
    return pa.concat_tables([train, pa.Table.from_pylist(rows * TIMES, schema=train.schema)])


def with_phrases(data: Path, folder: Path, share: float) -> Tables:
    """Return the same texts with passphrases among the training texts."""
    plain = tables(data, folder, share)
    path = folder / f"exposure-phrases-{share:g}.parquet"
    train = corpora.create_once(path, lambda: planted(corpora.read(plain["train"])))
    return {**plain, "plain": plain["train"], "train": train}


def measure_phrases(run: Run, tables: Tables) -> Measured:
    """Measure the exposure of the passphrases for a stranger, and how likely their ranks are by chance."""
    rows = [{"text": text, "user": "a stranger"} for text in phrases(corpora.read(tables["plain"]))]
    nats = np.array([row["nats"] for row in run.score(rows, unknown="group")])
    ranks = 1.0 + (nats[PHRASES:] < nats[:PHRASES, None]).sum(1)
    bits = np.log2((ALTERNATIVES + 1) / ranks)
    row = {
        "stranger": float(bits.mean()),
        "p": uniformity_p_value(ranks, ALTERNATIVES),
        "chance": chance_exposure(ALTERNATIVES),
    }
    return Measured(row)


EXPERIMENTS = {
    "exposure": Experiment("exposure", "exposure.toml", ROWS["exposure"], tables, measure),
    "exposure_phrases": Experiment(
        "exposure_phrases", "exposure.toml", ROWS["exposure_phrases"], with_phrases, measure_phrases
    ),
}

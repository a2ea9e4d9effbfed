"""Measure how much a model exposes of rare private texts, by training options.

exposure: each row trains a small model on commit subjects with 100 canaries, 10 for each of 1 to 10 repetitions, and
audits it; the trainings of a row differ in their initial weights and their canaries
exposure_phrases: 50 passphrases of four common words, each typed three times by one user, ranked among 1,000 others
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import regex

import corpora
from corpora import Tables
from factorcell.config import Config
from factorcell.runs.run import Run
from memorization import (
    ALTERNATIVES,
    CANARIES,
    READERS,
    audit,
    chance_exposure,
    make_canaries,
    plant,
    uniformity_p_value,
)
from study import ROWS, SEEDS, Experiment, Measurement

TRAINING_TEXTS, DEV_TEXTS = 12_000, 1_500  # texts of whole users to train on; texts to evaluate on
PHRASES, PHRASE_REPETITIONS = 50, 3
WORDS, LENGTH = 300, 4  # number of frequent words with at least four letters; words of a phrase


def sample_users(train: pa.Table, count: int) -> pa.Table:
    """Return the texts of random users, at least `count` texts in all."""
    users, texts = np.unique(train["user"].to_pylist(), return_counts=True)
    order = np.random.default_rng(0).permutation(len(users))
    before = np.cumsum(texts[order]) - texts[order]
    return train.filter(pa.array(np.isin(train["user"].to_pylist(), users[order[before < count]])))


def tables(data: Path, folder: Path, share: float) -> Tables:
    paths = {part: data / "commits" / f"{part}.parquet" for part in ("train", "dev")}

    def dev_texts(part: int) -> pa.Table:
        table, count = corpora.read(paths["dev"]), round(share * DEV_TEXTS) or 1
        places = np.random.default_rng(0).permutation(len(table))[part * count : (part + 1) * count]
        return table.take(np.sort(places))

    makers = {
        "train": lambda: sample_users(corpora.read(paths["train"]), round(share * TRAINING_TEXTS)),
        "dev": lambda: dev_texts(0),
        "test": lambda: dev_texts(1),
    }
    return {
        part: corpora.create_once(folder / f"exposure-{part}-{share:g}.parquet", make) for part, make in makers.items()
    }


def tables_with_canaries(data: Path, folder: Path, share: float) -> Tables:
    """Return the tables with the canaries of each seed, and the training texts that contain them."""
    result = tables(data, folder, share)
    train = corpora.read(result["train"])
    for seed in SEEDS:
        canaries = make_canaries(train, "text", CANARIES, seed)
        makers = {"canaries": lambda table=canaries: table, "planted": lambda table=canaries: plant(train, table)}
        for name, make in makers.items():
            result[f"{name}-{seed}"] = corpora.create_once(folder / f"exposure-{name}-{seed}-{share:g}.parquet", make)
    return result


def planted_table(config: Config, tables: Tables) -> Path:
    return tables[f"planted-{config.training.seed}"]


def measure(run: Run, tables: Tables) -> Measurement:
    """Audit a run; `canaries` has the repetitions and exposures of each canary, in the order of `READERS`."""
    canaries = corpora.read(tables[f"canaries-{run.config.training.seed}"])
    result = audit(run, canaries, corpora.read(tables["train"]), tables["test"])
    rounded = [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
        for row in (result["texts"], *result["exposure"])
    ]
    each = [[row["times"], *(round(row[reader], 3) for reader in READERS)] for row in result["canaries"]]
    return Measurement({"audited": rounded[0], "exposure": rounded[1:], "canaries": each})


# ---- passphrases ----


def phrases(train: pa.Table) -> list[str]:
    """Draw passphrases from the common words of the texts: those to plant, then their alternatives."""
    counts = Counter(word for text in train["text"].to_pylist() for word in set(regex.findall(r"\b[a-z]{4,}\b", text)))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    drawn = np.random.default_rng(7).choice(words, size=(PHRASES + ALTERNATIVES, LENGTH))
    return [" ".join(line) for line in drawn.tolist()]


def plant_phrases(train: pa.Table) -> pa.Table:
    """Return the texts followed by the passphrases, each as `PHRASE_REPETITIONS` texts of a random user."""
    places = np.random.default_rng(8).permutation(len(train))[:PHRASES]
    rows = [{**row, "text": text} for row, text in zip(train.take(places).to_pylist(), phrases(train), strict=False)]
    return pa.concat_tables([train, pa.Table.from_pylist(rows * PHRASE_REPETITIONS, schema=train.schema)])


def tables_with_phrases(data: Path, folder: Path, share: float) -> Tables:
    plain = tables(data, folder, share)
    path = folder / f"exposure-phrases-{share:g}.parquet"
    train = corpora.create_once(path, lambda: plant_phrases(corpora.read(plain["train"])))
    return {**plain, "plain": plain["train"], "train": train}


def measure_phrases(run: Run, tables: Tables) -> Measurement:
    """Measure the exposure of the passphrases to an unseen user, and the probability of their ranks by chance."""
    rows = [{"text": text, "user": "unseen user"} for text in phrases(corpora.read(tables["plain"]))]
    nats = run.score(rows, unknown="group")
    ranks = 1.0 + (nats[PHRASES:] < nats[:PHRASES, None]).sum(1)
    bits = np.log2((ALTERNATIVES + 1) / ranks)
    row = {
        "stranger": float(bits.mean()),
        "p": uniformity_p_value(ranks),
        "chance": chance_exposure(),
    }
    return Measurement(row)


EXPERIMENTS = {
    "exposure": Experiment(
        "exposure", "exposure.toml", ROWS["exposure"], tables_with_canaries, measure, training_table=planted_table
    ),
    "exposure_phrases": Experiment(
        "exposure_phrases", "exposure.toml", ROWS["exposure_phrases"], tables_with_phrases, measure_phrases
    ),
}

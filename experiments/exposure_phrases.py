"""The limit of min_users: secrets that are made of what everybody writes. Passphrases of four common words.

    python experiments/exposure_phrases.py --data DATA --out OUT

The texts are those of exposure.py with 50 passphrases among them, each three times by one user. They are ranked among
1,000 passphrases of the same words, for a stranger.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import regex

import corpora
import exposure
import study
from corpora import Tables
from factorcell.evaluation.exposure import chance, uniformity
from factorcell.model.run import Run
from study import Experiment, Measured, Options

PHRASES, TIMES, ALTERNATIVES = 50, 3, 1000
WORDS, LENGTH = 300, 4  # the most frequent words, of at least four letters; words of a phrase


def phrases(train: pa.Table) -> list[str]:
    """Passphrases of the common words of the texts: those that are planted, then their alternatives."""
    seen = Counter(word for text in train["text"].to_pylist() for word in set(regex.findall(r"\b[a-z]{4,}\b", text)))
    words = sorted(seen, key=lambda word: (-seen[word], word))[:WORDS]
    drawn = np.random.default_rng(7).choice(words, size=(PHRASES + ALTERNATIVES, LENGTH))
    return [" ".join(line) for line in drawn.tolist()]


def planted(train: pa.Table) -> pa.Table:
    """The texts and, each with all columns of a random one, the passphrases."""
    places = np.random.default_rng(8).permutation(len(train))[:PHRASES]
    rows = [{**row, "text": text} for row, text in zip(train.take(places).to_pylist(), phrases(train), strict=False)]
    return pa.concat_tables([train, pa.Table.from_pylist(rows * TIMES, schema=train.schema)])


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Those of exposure.py, and the texts to train on with passphrases among them."""
    plain = exposure.tables(data, folder, share)
    path = folder / f"exposure-phrases-{share:g}.parquet"
    train = corpora.kept(path, lambda: planted(corpora.read(plain["train"])))
    return {**plain, "plain": plain["train"], "train": train}


def measure(run: Run, tables: Tables) -> Measured:
    """The exposure of the passphrases for a stranger, and how likely their ranks are by chance."""
    rows = [{"text": text, "user": "a stranger"} for text in phrases(corpora.read(tables["plain"]))]
    nats = np.array([row["nats"] for row in run.score(rows, unknown="group")])
    ranks = 1.0 + (nats[PHRASES:] < nats[:PHRASES, None]).sum(1)
    bits = np.log2((ALTERNATIVES + 1) / ranks)
    row = {"stranger": float(bits.mean()), "p": uniformity(ranks, ALTERNATIVES), "chance": chance(ALTERNATIVES)}
    return Measured(row)


ROWS: dict[str, Options] = {
    "phrases as they are": {"training": {"canaries": 0}},
    "phrases, min_users 3": {"training": {"canaries": 0, "min_users": 3}},
}
EXPERIMENT = Experiment("exposure_phrases", "exposure.toml", ROWS, tables, measure)
main = study.script(__file__, __doc__, EXPERIMENT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

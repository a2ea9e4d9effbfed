"""Which options fit which table? Trials of a few minutes on twelve tables, from which the rules for defaults were made.

    python experiments/defaults.py --data DATA --out OUT --kind search --jobs 2

Each table has a random search of 12 trials, and trials with the defaults before rules chose, with what the rules choose
(`chosen`), and with the recipe for its data. The trials are those of defaults.jsonl; OUT/defaults.jsonl gets their rows
of this machine. A trial measures how long a step takes and makes as many steps as its minutes hold, but no more than
its passes. Time is that of the processor, on one thread; what three minutes hold differs between machines by a third
and more, so only rows of one machine are compared. Rules are made from the `FITTED` tables and judged on the others.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from corpora import read
from factorcell import files
from factorcell.choices import CHOSEN
from factorcell.config import Config, said_in
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.model.run import Run
from factorcell.training import rules
from factorcell.training.loop import train
from factorcell.training.plan import Budget, plan, speed
from factorcell.training.rules import Facts
from study import HERE, Row, processor

JUDGED = 1000  # development texts, at most
EVALUATIONS = 4
KINDS = ("search", "defaults", "chosen", "recipe")
KEY = ("table", "kind", "number", "minutes")  # what a trial is known by, apart from the machine
BEFORE = {"training": {"clip": 5.0}}  # the default that was another one before rules chose
SAME: Mapping[str, Any] = {"threads": 1, "save_every": 1_000_000, "precision": "float32"}  # for all trials


@dataclass(frozen=True)
class Table:
    """`rows` random texts of a data set, or all of them, how they are read, and the recipe for such data, if any."""

    source: str
    data: Mapping[str, Any]
    rows: int | None = None
    recipe: str = ""


WORDS: Mapping[str, Any] = {"unit": "word"}
LETTERS: Mapping[str, Any] = {"unit": "char"}
COMMITS = {**LETTERS, "user": "user"}
FITTED = {
    "clothes-5000": Table("womens_clothing", {**WORDS, "context": ["class", "rating"]}, 5000),
    "agnews": Table("agnews", {**WORDS, "context": ["section"]}, recipe="agnews_words"),
    "scotus-200000": Table("scotus", {**WORDS, "context": ["role", "speaker"]}, 200_000, "scotus"),
    "voices-20000": Table("commonvoice9", {**LETTERS, "context": ["language"]}, 20_000, "commonvoice9"),
    "places": Table("placenames", {**LETTERS, "context": ["lat:number", "lon:number"]}),
    "commits": Table("commits", COMMITS, recipe="commits_small"),
}
JUDGED_ON = {  # from other sources, except for the one that has users
    "dbpedia-1000": Table("dbpedia14", {**WORDS, "context": ["category"]}, 1000),
    "imdb-6000": Table("imdb", {**WORDS, "context": ["rating"]}, 6000, "reviews_imdb"),
    "hotels": Table("hotels", {**WORDS, "context": ["hotel", "rating"]}, recipe="hotels"),
    "reddit-100000": Table("reddit_titles", {**WORDS, "context": ["subreddit"]}, 100_000, "thesis_reddit"),
    "tweets": Table("geotweets", {**LETTERS, "context": ["lat:number", "lon:number"]}, recipe="geotweets"),
    "commits-10000": Table("commits", COMMITS, 10_000, "commits_small"),
}
TABLES = {**FITTED, **JUDGED_ON}


def options(trial: Row) -> Row:
    """Return the options of a trial in addition to the defaults: section -> option -> value."""
    if trial["kind"] == "search":
        return dict(trial["options"])
    if trial["kind"] == "recipe":
        recipe = said_in(HERE / f"{TABLES[trial['table']].recipe}.toml")
        return {"model": recipe["model"], "training": recipe["training"]}
    return BEFORE if trial["kind"] == "defaults" else {}


def config(trial: Row) -> Config:
    """Return all options of a trial; its epochs are the most that it may have."""
    own = options(trial)
    training = {**own.get("training", {}), **SAME, "evaluations": EVALUATIONS}
    data = TABLES[trial["table"]].data
    return Config.from_dict({"data": data, "model": own.get("model", {}), "training": training})


def corpora(data: Path, table: Table, made: Config) -> tuple[Corpus, Corpus]:
    """Return the texts of a table to train on, and those to measure on."""
    rows = read(data / table.source / "train.parquet")
    if table.rows is not None:
        rows = rows.take(np.sort(np.random.default_rng(0).permutation(len(rows))[: table.rows]))
    corpus = prepare(rows, made.data)
    like = {"vocabulary": corpus.vocabulary, "schema": corpus.schema, "unknown": "group"}
    held = prepare(read(data / table.source / "dev.parquet"), made.data, **like)
    judged = np.random.default_rng(0).permutation(len(held))[:JUDGED]
    return corpus, held.select(np.sort(judged))


def settled(trial: Row, corpus: Corpus, held: Corpus) -> Config:
    """Return the options of a trial, with as many passes as its minutes hold, evaluations not counted."""
    made = config(trial)
    if trial["kind"] == "chosen":
        said = {"data": dict(TABLES[trial["table"]].data), "training": SAME}
        made = plan(said, corpus, held, Budget(trial["minutes"]), clock=time.process_time).config
        most = rules.passes(Facts.of(corpus, held, made.data), "best")
        made = replace(made, training=replace(made.training, evaluations=EVALUATIONS, epochs=most))
    found = speed(made, corpus, held, clock=time.process_time)
    passes = min(made.training.epochs, trial["minutes"] * 60 / (found.step * found.steps))
    return replace(made, training=replace(made.training, epochs=passes))


def made_row(trial: Row, data: Path) -> Row:
    """Return the outcome of a trial."""
    torch.set_num_threads(1)
    corpus, held = corpora(data, TABLES[trial["table"]], config(trial))
    made = settled(trial, corpus, held)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", made, corpus.vocabulary, corpus.schema)
        begun = time.process_time()
        rows = [row for row in train(run, corpus, held) if row["split"] == "dev"]
        spent = (time.process_time() - begun) / 60
    best = min(rows, key=lambda row: float(row["perplexity"]))
    row = {name: trial[name] for name in KEY}
    row |= {name: round(best[name], 4) for name in ("perplexity", "perplexity_known")}
    row |= {"texts": len(corpus), "targets": corpus.targets, "vocabulary": len(corpus.vocabulary)}
    row |= {"epochs": round(made.training.epochs, 4), "spent": round(spent, 2), "best_at": best["step"] / best["steps"]}
    values = made.to_dict()
    chosen = {section: {name: values[section][name] for name in names} for section, names in CHOSEN.items()}
    return {**row, "machine": processor(), "options": options(trial) or chosen}


def trials(kind: str, tables: Sequence[str], done: Sequence[Row] = ()) -> list[Row]:
    """Return the kept trials of a kind, without those that have a row of this machine."""
    finished = [[row[name] for name in KEY] for row in done if row.get("machine") == processor()]
    kept = {str([row[name] for name in KEY]): row for row in files.read_rows(HERE / "defaults.jsonl")}
    own = [row for row in kept.values() if row["kind"] == kind and row["table"] in tables]
    return [row for row in own if [row[name] for name in KEY] not in finished]


def main() -> int:
    """Make the missing rows, several side by side; the exit code."""
    parser = argparse.ArgumentParser(description="Trials of a few minutes, from which rules for defaults are made.")
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder of Parquet files for each set")
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows; the same one to resume")
    parser.add_argument("--kind", choices=KINDS, default="search")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), metavar="TABLE")
    parser.add_argument("--jobs", type=int, default=2, help="trials side by side (default: 2)")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = given.out / "defaults.jsonl"
    missing = trials(given.kind, given.tables, files.read_rows(rows))
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(made_row, trial, given.data) for trial in missing]
        for done in tqdm(as_completed(waiting), total=len(waiting), unit="trial"):
            files.append_row(rows, done.result())
    return 0


if __name__ == "__main__":
    sys.exit(main())

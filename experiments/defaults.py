"""Which options fit which table? Trials of a few minutes on many tables: what rules for defaults are made from.

    python experiments/defaults.py --data DATA --out OUT --jobs 2      # stop as you like: the same command goes on
    python experiments/defaults.py --data DATA --out OUT --kind defaults --minutes 1 3 15      # also chosen, recipe
    python experiments/defaults.py --data DATA --out OUT --best 2      # of the search, where another machine made it
    python experiments/defaults.py --out OUT --show

Every table has a random search of 12 trials, as a yardstick, and is trained with the defaults as they were before rules
chose, with what the rules choose, and with the recipe that there is for its data. A trial measures on its first batches
how long a step takes, and makes as many steps as its minutes hold, but no more than its passes. Time is that of the
processor, on one thread: neighbours on the machine do not count. But what three minutes hold differs between machines
by a third and more: only rows of one machine are compared, and trials that have a row of another one can be made again.
All compute with floats, since options are compared, not numbers. Rules are made from the `FITTED` tables and judged on
the others.
"""

import argparse
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

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
from origins import processor
from study import HERE

TRIALS, MINUTES = 12, 3.0
JUDGED = 1000  # development texts, at most
EVALUATIONS = 4
UNKNOWN = "an unknown machine"  # of the first rows
KINDS = ("search", "defaults", "chosen", "recipe")
BEFORE: Mapping[str, Any] = {"training": {"clip": 5.0}}  # what of the defaults was other before rules chose
SAME: Mapping[str, Any] = {"threads": 1, "save_every": 1_000_000, "precision": "float32"}  # for all trials

Row = dict[str, Any]
Options = dict[str, dict[str, Any]]  # section -> option -> value


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
# Of other sources, but for the one that has users.
JUDGED_ON = {
    "dbpedia-1000": Table("dbpedia14", {**WORDS, "context": ["category"]}, 1000),
    "imdb-6000": Table("imdb", {**WORDS, "context": ["rating"]}, 6000, "reviews_imdb"),
    "hotels": Table("hotels", {**WORDS, "context": ["hotel", "rating"]}, recipe="hotels"),
    "reddit-100000": Table("reddit_titles", {**WORDS, "context": ["subreddit"]}, 100_000, "thesis_reddit"),
    "tweets": Table("geotweets", {**LETTERS, "context": ["lat:number", "lon:number"]}, recipe="geotweets"),
    "commits-10000": Table("commits", COMMITS, 10_000, "commits_small"),
}
TABLES = {**FITTED, **JUDGED_ON}


@dataclass(frozen=True)
class Trial:
    """One training of a `table` for so many `minutes`: of a search its `number`, or of another of the `KINDS`."""

    table: str
    kind: str
    number: int
    minutes: float

    KEY: ClassVar = ("table", "kind", "number", "minutes")

    @property
    def key(self) -> Row:
        """What a row of the results is known by, beside the machine."""
        return {name: getattr(self, name) for name in self.KEY}

    def options(self) -> Options:
        """What it is trained with besides the defaults."""
        table = TABLES[self.table]
        if self.kind == "recipe":
            said = said_in(HERE / f"{table.recipe}.toml")
            return {"model": said["model"], "training": said["training"]}
        if self.kind == "search":
            return drawn(np.random.default_rng((list(TABLES).index(self.table), self.number)), table)
        return {section: dict(said) for section, said in BEFORE.items()} if self.kind == "defaults" else {}


def drawn(random: np.random.Generator, table: Table) -> Options:
    """Options of a search, by the unit of the table; passes are at most that many."""
    words = table.data["unit"] == "word"

    def one(*among: Any) -> Any:
        return among[random.integers(len(among))]

    rate, passes = float(np.exp(random.uniform(np.log(1e-3), np.log(1.2e-2)))), one(3, 6, 12, 25)
    context, drop = one(4, 8, 16, 24), one(0.0, 0.1, 0.2, 0.3)
    sampled = {"loss": "sampled", "samples": one(500, 1000, 2000)} if words and one(True, True, False) else {}
    model = {
        "embedding_size": one(50, 100, 150, 200) if words else one(16, 24, 50),
        "hidden_size": one(100, 150, 200, 300) if words else one(150, 300, 450),
        "layer_norm": one(False, True),
        "context_size": context,
        "variable_size": context,
        "rank": one(4, 12, 24),
        "dropout_recurrent": drop,
        "dropout_input": drop * one(0.0, 1.0) if words else 0.0,
        "dropout_output": drop * one(1.0, 1.5) if words else 0.0,
        "dropout_context": one(0.0, 0.0, 0.1, 0.2),
    }
    training = {
        "batch_tokens": one(500, 1000, 1500, 2500, 4000),
        "learning_rate": rate,
        "token_rate": one(1.0, 3.0),
        "weight_decay": one(0.0, 0.01),
        "epochs": passes,
        **sampled,
    }
    return {"model": model, "training": training}


def config(trial: Trial) -> Config:
    """All options of a trial; its epochs are those that it has at most."""
    options = trial.options()
    training = {**options.get("training", {}), **SAME, "evaluations": EVALUATIONS}
    return Config.from_dict({"data": TABLES[trial.table].data, "model": options.get("model", {}), "training": training})


def corpora(data: Path, table: Table, made: Config) -> tuple[Corpus, Corpus]:
    """The texts of a table: to train on, and to measure on."""
    source = data / table.source
    train_rows = read(source / "train.parquet")
    if table.rows is not None:
        places = np.random.default_rng(0).permutation(len(train_rows))[: table.rows]
        train_rows = train_rows.take(np.sort(places))
    corpus = prepare(train_rows, made.data)
    held = prepare(
        read(source / "dev.parquet"),
        made.data,
        vocabulary=corpus.vocabulary,
        schema=corpus.schema,
        unknown="group",
    )
    judged = np.random.default_rng(0).permutation(len(held))[:JUDGED]
    return corpus, held.select(np.sort(judged))


def settled(trial: Trial, corpus: Corpus, held: Corpus) -> Config:
    """The options of a trial, with as many passes as its minutes of the processor hold, evaluations not counted."""
    made = config(trial)
    if trial.kind == "chosen":
        said = {"data": dict(TABLES[trial.table].data), "training": SAME}
        made = plan(said, corpus, held, Budget(trial.minutes), clock=time.process_time).config
        most = rules.passes(Facts.of(corpus, held, made.data), "best")
        made = replace(made, training=replace(made.training, evaluations=EVALUATIONS, epochs=most))
    found = speed(made, corpus, held, clock=time.process_time)
    passes = min(made.training.epochs, trial.minutes * 60 / (found.step * found.steps))
    return replace(made, training=replace(made.training, epochs=passes))


def made_row(trial: Trial, data: Path) -> Row:
    """The outcome of a trial."""
    torch.set_num_threads(1)
    corpus, held = corpora(data, TABLES[trial.table], config(trial))
    made = settled(trial, corpus, held)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", made, corpus.vocabulary, corpus.schema)
        begun = time.process_time()
        rows = [row for row in train(run, corpus, held) if row["split"] == "dev"]
        spent = (time.process_time() - begun) / 60
    best = min(rows, key=lambda row: float(row["perplexity"]))
    figures = {name: round(best[name], 4) for name in ("perplexity", "perplexity_known")}
    about = {"texts": len(corpus), "targets": corpus.targets, "vocabulary": len(corpus.vocabulary)}
    told = {"epochs": round(made.training.epochs, 4), "spent": round(spent, 2), "best_at": best["step"] / best["steps"]}
    options = trial.options() or chosen_of(made)
    return {**trial.key, **figures, **about, **told, "machine": processor(), "options": options}


def chosen_of(made: Config) -> Options:
    """What of a config the rules choose."""
    values = made.to_dict()
    return {section: {name: values[section][name] for name in names} for section, names in CHOSEN.items()}


@dataclass
class Study:
    """The rows in a folder, and what is missing of those that are asked for."""

    out: Path
    machine: str = field(default_factory=processor)
    rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = files.read_rows(self.out / "defaults.jsonl")

    def missing(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that have no row of this machine yet."""
        done = [{name: row[name] for name in Trial.KEY} for row in self.rows if row.get("machine") == self.machine]
        return [trial for trial in trials if trial.key not in done]

    def best(self, trials: Sequence[Trial], count: int) -> list[Trial]:
        """The `count` best of each table that there are, of any machine."""
        there = [row for row in self.rows if row["kind"] == "search"]
        ranked = sorted(there, key=lambda row: float(row["perplexity"]))
        numbers = {
            table: list(dict.fromkeys(row["number"] for row in ranked if row["table"] == table)) for table in TABLES
        }
        return [trial for trial in trials if trial.number in numbers[trial.table][:count]]

    def make(self, trials: Sequence[Trial], data: Path, jobs: int) -> None:
        """Train the missing ones, several side by side; each row is kept as soon as it is there."""
        missing = self.missing(trials)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            waiting = [pool.submit(made_row, trial, data) for trial in missing]
            for done in tqdm(as_completed(waiting), total=len(waiting), unit="trial"):
                self.rows.append(done.result())
                files.append_row(self.out / "defaults.jsonl", self.rows[-1])

    def show(self) -> Iterator[str]:
        """A line per table and machine: the best trials of the search, and the other kinds."""
        machines = dict.fromkeys(row.get("machine", UNKNOWN) for row in self.rows)
        for table, where in itertools.product(TABLES, machines):
            there = [row for row in self.rows if (row["table"], row.get("machine", UNKNOWN)) == (table, where)]
            found = sorted(there, key=lambda row: float(row["perplexity"]))
            search = [row for row in found if row["kind"] == "search"]
            best = ", ".join(f"{row['perplexity']:.2f}" for row in search[:3])
            parts = [f"{len(search)} trials, best {best}"]
            for kind in KINDS[1:]:
                told = [f"{row['minutes']:g} min {row['perplexity']:.2f}" for row in found if row["kind"] == kind]
                parts += [f"{kind} {', '.join(told)}"] if told else []
            if found:
                yield f"{table} ({where}): {'; '.join(parts)}"


def trials(kind: str, tables: Sequence[str], minutes: Sequence[float]) -> list[Trial]:
    """All of a kind, the first of every table before the second of any; recipes of the tables that have one."""
    count = TRIALS if kind == "search" else 1
    there = [table for table in tables if kind != "recipe" or TABLES[table].recipe]
    return [Trial(table, kind, number, least) for number in range(count) for least in minutes for table in there]


def main() -> int:
    """Train what is missing, and show what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with a folder of Parquet files for each data set")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; the same one to go on")
    parser.add_argument("--kind", choices=KINDS, default="search")
    parser.add_argument("--minutes", type=float, nargs="+", default=[MINUTES], help="of each trial (default: 3)")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), metavar="TABLE")
    parser.add_argument("--best", type=int, metavar="COUNT", help="of a search, the best of each table that has rows")
    parser.add_argument("--jobs", type=int, default=2, help="trials side by side (default: 2)")
    parser.add_argument("--show", action="store_true", help="print what is there")
    given = parser.parse_args()
    study = Study(given.out)
    if not given.show:
        given.out.mkdir(parents=True, exist_ok=True)
        try:
            wanted = trials(given.kind, given.tables, given.minutes)
            study.make(study.best(wanted, given.best) if given.best else wanted, given.data, given.jobs)
        except KeyboardInterrupt:
            print("stopped; the same command goes on", file=sys.stderr)
            return 130
    print("\n".join(study.show()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

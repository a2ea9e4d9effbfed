"""What the advice expects of the context of each data set, from the training texts alone (docs/advice.md)."""

from functools import partial
from pathlib import Path

import corpora
import tacl
import thesis_sixteen
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.advice.advise import advise
from study import Baseline, Experiment, Measured, Row

OF = {name: of for name, of in tacl.EXPERIMENTS.items() if name != "places"}  # whose recipes say how texts are read
OF["scotus"] = thesis_sixteen.EXPERIMENTS["scotus"]
FIGURES = ("least", "expected", "most")


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Return the training texts of each data set."""
    paths = {
        name: corpora.parts(data, folder, tacl.SETS[name].source, share)["train"] for name in OF if name != "scotus"
    }
    return {**paths, "scotus": thesis_sixteen.scotus_tables(data, folder, share)["train"]}


def advised(config: Config, tables: Tables, folder: Path, name: str) -> Measured:
    """Return the advice on each column of a data set, and on all of them under the empty name."""
    advice = advise(tables[name], config, progress=True)
    every = [*advice["columns"], {**advice["all"], "column": ""}]
    return Measured({"advice": {column["column"]: {key: column[key] for key in FIGURES} for column in every}})


def options(of: Experiment) -> dict[str, Row]:
    """Return how the texts of a data set are read."""
    config = of.config(of.trainings()[0], 1).to_dict()
    return {section: config[section] for section in ("data", "tokenizer")}


EXPERIMENT = Experiment(
    "advice",
    "tacl_agnews.toml",
    {name: options(of) for name, of in OF.items()},
    tables,
    baselines={name: Baseline(partial(advised, name=name), seeded=False) for name in OF},
)

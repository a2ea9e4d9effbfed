"""Estimate the gain from the context of each data set, from the training texts alone (docs/advice.md)."""

from functools import partial
from pathlib import Path

import corpora
import tacl
import thesis_sixteen
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.advice import advise
from study import Baseline, Experiment, Measurement, Row

# The experiments whose recipes define how the texts are read.
RECIPE_EXPERIMENTS = {name: experiment for name, experiment in tacl.EXPERIMENTS.items() if name != "places"}
RECIPE_EXPERIMENTS["scotus"] = thesis_sixteen.EXPERIMENTS["scotus"]


def tables(data: Path, folder: Path, share: float) -> Tables:
    paths = {
        name: corpora.parts(data, folder, tacl.SETS[name].source, share)["train"]
        for name in RECIPE_EXPERIMENTS
        if name != "scotus"
    }
    return {**paths, "scotus": thesis_sixteen.scotus_tables(data, folder, share)["train"]}


def measure_advice(config: Config, tables: Tables, folder: Path, name: str) -> Measurement:
    """Return the expected gain of each column of a data set, and of all columns together under the empty name."""
    advice = advise(tables[name], config)
    gains = {column["column"]: column["gain"] for column in advice.columns}
    return Measurement({"advice": {**gains, "": advice.gain}})


def options(experiment: Experiment) -> dict[str, Row]:
    """Return the options by which the models of an experiment read their texts."""
    config = experiment.config(experiment.trainings()[0], 1).to_dict()
    return {section: config[section] for section in ("data", "tokenizer")}


EXPERIMENT = Experiment(
    "advice",
    "tacl_agnews.toml",
    {name: options(experiment) for name, experiment in RECIPE_EXPERIMENTS.items()},
    tables,
    baselines={name: Baseline(partial(measure_advice, name=name), seeded=False) for name in RECIPE_EXPERIMENTS},
)

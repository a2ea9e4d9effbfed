"""FactorCells of tacl.py mixed with an n-gram model, an ensemble of all seeds, and both; weights suit dev.

Also what n-grams gain on test texts that share no `RUN` words in a row with a training text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import corpora
import study
import tacl
from corpora import Tables
from factorcell.config import Config
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer
from factorcell.training.fit import fit
from factorcell.training.mixture import Mixture
from measures import Cities
from study import Baseline, Experiment, Measured
from tacl import SETS
from tacl_baselines import Asked, best_ngram, scored, tables, told, told_by_rule

MODEL, WITH = "factorcell", "with ngram"
RUN = 8  # words in a row by which a text is known again


def factorcells(config: Config, tables: Tables, folder: Path, seeds: Sequence[int]) -> list[Run]:
    """The FactorCells of a set by their seeds, trained to their end, with the options given."""
    here = folder.parent.parent
    runs = here.with_name(here.name.replace("beyond_", "")) / MODEL
    every = {seed: replace(config, training=replace(config.training, seed=seed)) for seed in seeds}
    return [factorcell(one, tables, runs / str(seed)) for seed, one in every.items()]


def factorcell(config: Config, tables: Tables, folder: Path) -> Run:
    """That in a folder, which is trained if it is not yet; of a trained one rows side by side may read."""
    if (folder / "training.json").is_file():
        return Run.open(folder)
    return fit(tables["train"], tables["dev"], config, folder, resume=True)


def together(config: Config, tables: Tables, folder: Path, name: str, seeds: Sequence[int], ngram: bool) -> Measured:
    """FactorCells of some seeds, and an n-gram model beside them, in one mixture."""
    runs = factorcells(config, tables, folder, seeds or (config.training.seed,))
    models: list[Scorer] = [*runs, *([best_ngram(config, tables, folder)] if ngram else [])]
    made = Mixture(folder, models, None, np.full((1, len(models)), 1 / len(models)))
    if ngram:
        made = made.fit(made.prepare(tables["dev"], unknown="group"))
    row = {"weights": made.weights[0].tolist(), "parameters": sum(run.model.parameter_count() for run in runs)}
    found = Measured(row) | scored(made, tables) | which(made, runs[0], tables, name)
    if not ngram or len(runs) > 1:
        return found
    return found | on_fresh(study.tested(runs[0], tables["test"]), found, tables)


def on_fresh(plain: Measured, made: Measured, tables: Tables) -> Measured:
    """By what share a scorer lowers the perplexity of `fresh` texts, and how many there are."""
    there = fresh(tables["train"], tables["test"])
    if not there.any():
        return Measured({})
    known = [one.figures["perplexity_known"] for one in (plain, made)]
    before, after = (one.numerator[there].sum() / one.denominator[there].sum() for one in known)
    return Measured({"fresh_texts": int(there.sum()), "fresh_gain": float(-np.expm1(after - before))})


def fresh(train: Path, test: Path) -> NDArray[np.bool_]:
    """Which texts of the test share no `RUN` words in a row with a training text."""
    there = {run for text in corpora.read(train)["text"].to_pylist() for run in in_a_row(text)}
    return np.array([there.isdisjoint(in_a_row(text)) for text in corpora.read(test)["text"].to_pylist()])


def in_a_row(text: str) -> set[tuple[str, ...]]:
    """All runs of `RUN` words of a text, in small letters."""
    words = text.lower().split()
    return {tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1)}


def which(scorer: Scorer, run: Run, tables: Tables, name: str) -> Measured:
    """Which contexts a scorer tells apart that knows those of `run`."""
    target = SETS[name].target
    if isinstance(target, Cities):
        cities = target.named()
        asked = Asked.of(target, tables, list(cities))
        return told(asked.by_rule(scorer, tables["labelled_judged"], list(cities.values())))
    return told_by_rule(scorer, run.schema.variable(target), tables, target)


def experiment(name: str) -> Experiment:
    """Return the rows of a data set, which begin with the runs of tacl.py: the row that trains them comes first."""

    def of(seeds: Sequence[int], ngram: bool) -> Callable[..., Measured]:
        return partial(together, name=name, seeds=seeds, ngram=ngram)

    made = {
        WITH: Baseline(of((), ngram=True)),
        "ensemble": Baseline(of(study.SEEDS, ngram=False), seeded=False, after=WITH),
        "ensemble with ngram": Baseline(of(study.SEEDS, ngram=True), seeded=False, after=WITH),
    }
    plain, texts = tacl.EXPERIMENTS[name], partial(tables, name)
    rows = dict.fromkeys(made, plain.rows[MODEL])
    return replace(plain, name=f"tacl_beyond_{name}", rows=rows, tables=texts, baselines=made)


EXPERIMENTS = {name: experiment(name) for name in SETS}

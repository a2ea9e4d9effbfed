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
from tacl_baselines import TargetValues, accuracy_of, best_ngram, classify_by_bayes_rule, measure_scorer, tables

MODEL, WITH = "factorcell", "with ngram"
RUN = 8  # words in a row by which a text is known again


def factorcells(config: Config, tables: Tables, folder: Path, seeds: Sequence[int]) -> list[Run]:
    """The FactorCells of a set by their seeds, trained to their end, with the options given."""
    folder_of_rows = folder.parent.parent
    runs = folder_of_rows.with_name(folder_of_rows.name.replace("beyond_", "")) / MODEL
    every = {seed: replace(config, training=replace(config.training, seed=seed)) for seed in seeds}
    return [factorcell(config_, tables, runs / str(seed)) for seed, config_ in every.items()]


def factorcell(config: Config, tables: Tables, folder: Path) -> Run:
    """That in a folder, which is trained if it is not yet; of a trained one rows side by side may read."""
    if (folder / "training.json").is_file():
        return Run.open(folder)
    return fit(tables["train"], tables["dev"], config, folder, resume=True)


def together(config: Config, tables: Tables, folder: Path, name: str, seeds: Sequence[int], ngram: bool) -> Measured:
    """FactorCells of some seeds, and an n-gram model beside them, in one mixture."""
    runs = factorcells(config, tables, folder, seeds or (config.training.seed,))
    models: list[Scorer] = [*runs, *([best_ngram(config, tables, folder)] if ngram else [])]
    ensemble = Mixture(folder, models, None, np.full((1, len(models)), 1 / len(models)))
    if ngram:
        ensemble = ensemble.fit(ensemble.prepare(tables["dev"], unknown="group"))
    row = {"weights": ensemble.weights[0].tolist(), "parameters": sum(run.model.parameter_count() for run in runs)}
    measured = Measured(row) | measure_scorer(ensemble, tables) | which(ensemble, runs[0], tables, name)
    if not ngram or len(runs) > 1:
        return measured
    return measured | on_fresh(study.measure_perplexity(runs[0], tables["test"]), measured, tables)


def on_fresh(plain: Measured, mixed: Measured, tables: Tables) -> Measured:
    """By what share a scorer lowers the perplexity of `fresh` texts, and how many there are."""
    is_new = fresh(tables["train"], tables["test"])
    if not is_new.any():
        return Measured({})
    known = [measured.figures["perplexity_known"] for measured in (plain, mixed)]
    before, after = (measured.numerator[is_new].sum() / measured.denominator[is_new].sum() for measured in known)
    return Measured({"fresh_texts": int(is_new.sum()), "fresh_gain": float(-np.expm1(after - before))})


def fresh(train: Path, test: Path) -> NDArray[np.bool_]:
    """Which texts of the test share no `RUN` words in a row with a training text."""
    training_ngrams = {run for text in corpora.read(train)["text"].to_pylist() for run in in_a_row(text)}
    return np.array([training_ngrams.isdisjoint(in_a_row(text)) for text in corpora.read(test)["text"].to_pylist()])


def in_a_row(text: str) -> set[tuple[str, ...]]:
    """All runs of `RUN` words of a text, in small letters."""
    words = text.lower().split()
    return {tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1)}


def which(scorer: Scorer, run: Run, tables: Tables, name: str) -> Measured:
    """Which contexts a scorer tells apart that knows those of `run`."""
    target = SETS[name].target
    if isinstance(target, Cities):
        cities = target.cities()
        values = TargetValues.of(target, tables, list(cities))
        return accuracy_of(values.by_rule(scorer, tables["labelled_judged"], list(cities.values())))
    return classify_by_bayes_rule(scorer, run.schema.variable(target), tables, target)


def experiment(name: str) -> Experiment:
    """Return the rows of a data set, which begin with the runs of tacl.py: the row that trains them comes first."""

    def of(seeds: Sequence[int], ngram: bool) -> Callable[..., Measured]:
        return partial(together, name=name, seeds=seeds, ngram=ngram)

    baselines = {
        WITH: Baseline(of((), ngram=True)),
        "ensemble": Baseline(of(study.SEEDS, ngram=False), seeded=False, after=WITH),
        "ensemble with ngram": Baseline(of(study.SEEDS, ngram=True), seeded=False, after=WITH),
    }
    plain, texts = tacl.EXPERIMENTS[name], partial(tables, name)
    rows = dict.fromkeys(baselines, plain.rows[MODEL])
    return replace(plain, name=f"tacl_beyond_{name}", rows=rows, tables=texts, baselines=baselines)


EXPERIMENTS = {name: experiment(name) for name in SETS}

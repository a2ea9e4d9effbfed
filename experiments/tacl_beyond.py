"""FactorCells of tacl.py mixed with an n-gram model, ensembles of all seeds, and both; weights are fitted to dev.

Also measures the gain of n-grams on test texts that share no `SEQUENCE_LENGTH` consecutive words with a training text.
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
from factorcell.ngram.ngram import NGram
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import Run
from factorcell.training.fit import fit
from factorcell.training.mixture import MixedModels
from measures import Cities
from study import Baseline, Experiment, Measurement
from tacl import SETS
from tacl_baselines import TargetValues, best_ngram, classify_by_bayes_rule, measure_accuracy, measure_scorer, tables

MODEL, WITH_NGRAM = "factorcell", "with ngram"
SEQUENCE_LENGTH = 8  # consecutive words that identify a text


def factorcells(config: Config, tables: Tables, folder: Path, seeds: Sequence[int]) -> list[Run]:
    folder_of_rows = folder.parent.parent
    runs = folder_of_rows.with_name(folder_of_rows.name.replace("beyond_", "")) / MODEL
    configs = {seed: replace(config, training=replace(config.training, seed=seed)) for seed in seeds}
    return [factorcell(seed_config, tables, runs / str(seed)) for seed, seed_config in configs.items()]


def factorcell(config: Config, tables: Tables, folder: Path) -> Run:
    """Return the FactorCell of a folder, trained if necessary. A trained one is opened without a lock."""
    if (folder / "training.json").is_file():
        return Run.open(folder)
    return fit(tables["train"], dev=tables["dev"], out=folder, resume=True, config=config)


def measure_ensemble(
    config: Config, tables: Tables, folder: Path, name: str, seeds: Sequence[int], ngram: bool
) -> Measurement:
    runs = factorcells(config, tables, folder, seeds or (config.training.seed,))
    models: list[Run | NGram] = [*runs, *([best_ngram(config, tables, folder)] if ngram else [])]
    ensemble = MixedModels(folder, models)
    if ngram:
        ensemble.fit(ensemble.prepare(tables["dev"], unknown="group"))
    row = {"weights": ensemble.weights[0].tolist(), "parameters": sum(run.model.parameter_count() for run in runs)}
    measured = Measurement(row) | measure_scorer(ensemble, tables) | measure_target(ensemble, runs[0], tables, name)
    if not ngram or len(runs) > 1:
        return measured
    return measured | gain_on_new_texts(study.measure_perplexity(runs[0], tables["test"]), measured, tables)


def gain_on_new_texts(plain: Measurement, mixed: Measurement, tables: Tables) -> Measurement:
    """Return the relative perplexity reduction on new texts, and the number of these texts."""
    is_new = is_new_text(tables["train"], tables["test"])
    if not is_new.any():
        return Measurement({})
    known = [measured.figures["perplexity_known"] for measured in (plain, mixed)]
    before, after = (measured.numerator[is_new].sum() / measured.denominator[is_new].sum() for measured in known)
    return Measurement({"fresh_texts": int(is_new.sum()), "fresh_gain": float(-np.expm1(after - before))})


def is_new_text(train: Path, test: Path) -> NDArray[np.bool_]:
    """Return which test texts share no `SEQUENCE_LENGTH` consecutive words with a training text."""
    training_sequences = {words for text in corpora.read(train)["text"].to_pylist() for words in word_sequences(text)}
    return np.array(
        [training_sequences.isdisjoint(word_sequences(text)) for text in corpora.read(test)["text"].to_pylist()]
    )


def word_sequences(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[at : at + SEQUENCE_LENGTH]) for at in range(len(words) - SEQUENCE_LENGTH + 1)}


def measure_target(scorer: Scorer, run: Run, tables: Tables, name: str) -> Measurement:
    """Measure the classification by a scorer with the contexts of `run`."""
    target = SETS[name].target
    if isinstance(target, Cities):
        cities = target.cities()
        values = TargetValues.from_tables(target, tables, list(cities))
        return measure_accuracy(values.classify(scorer, tables["labelled_judged"], list(cities.values())))
    return classify_by_bayes_rule(scorer, run.schema.variable(target), tables, target)


def experiment(name: str) -> Experiment:
    """Return the rows of a data set; the first one trains the runs of tacl.py that the others read."""

    def ensemble(seeds: Sequence[int], ngram: bool) -> Callable[..., Measurement]:
        return partial(measure_ensemble, name=name, seeds=seeds, ngram=ngram)

    baselines = {
        WITH_NGRAM: Baseline(ensemble((), ngram=True)),
        "ensemble": Baseline(ensemble(study.SEEDS, ngram=False), seeded=False, after=WITH_NGRAM),
        "ensemble with ngram": Baseline(ensemble(study.SEEDS, ngram=True), seeded=False, after=WITH_NGRAM),
    }
    plain, texts = tacl.EXPERIMENTS[name], partial(tables, name)
    rows = dict.fromkeys(baselines, plain.rows[MODEL])
    return replace(plain, name=f"tacl_beyond_{name}", rows=rows, tables=texts, baselines=baselines)


EXPERIMENTS = {name: experiment(name) for name in SETS}

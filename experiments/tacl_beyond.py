"""What a user gets who wants the best, on the sets of tables 3 and 4 of the TACL paper: beyond a single FactorCell.

    python experiments/tacl_beyond.py agnews --data DATA --out OUT     # after tacl.py agnews

- told: the FactorCell of the same seed, which has learned in the end to tell contexts apart (--tell-apart)
- with ngram: the FactorCell of the same seed and an n-gram model, with weights that suit dev
- ensemble: the FactorCells of all seeds, each with the same weight
- ensemble with ngram: those and the n-gram model, with weights that suit dev

FactorCells are those of tacl.py; what is not trained yet is.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import study
import tacl
from corpora import Tables
from factorcell.config import Config, TrainingConfig
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer
from factorcell.training import telling
from factorcell.training.finetuning import finetune
from factorcell.training.fit import fit
from factorcell.training.mixture import Mixture
from measures import cities
from study import Baseline, Experiment, Measured, Options
from tacl import SETS
from tacl_baselines import Asked, best_ngram, scored, tables, told, told_by_rule

MODEL = "factorcell"
WEIGHT, OTHERS = 10, 4  # of the nats of a text's true value, and other values that it is compared with in a step


def factorcells(config: Config, tables: Tables, folder: Path, seeds: Sequence[int]) -> list[Run]:
    """The FactorCells of a set by their seeds, trained to their end; but for telling, they have the options given."""
    here, plain = folder.parent.parent, TrainingConfig()
    untold = replace(config.training, tell_apart=plain.tell_apart, tell_values=plain.tell_values)
    runs = here.with_name(here.name.replace("beyond_", "")) / MODEL
    every = {seed: replace(config, training=replace(untold, seed=seed)) for seed in seeds}
    return [factorcell(one, tables, runs / str(seed)) for seed, one in every.items()]


def factorcell(config: Config, tables: Tables, folder: Path) -> Run:
    """That in a folder, which is trained if it is not yet; of a trained one rows side by side may read."""
    if (folder / "training.json").is_file():
        return Run.open(folder)
    return fit(tables["train"], tables["dev"], config, folder, resume=True)


def taught(config: Config, tables: Tables, folder: Path, name: str) -> Measured:
    """The FactorCell of the seed, trained on as `fit` ends a training with `tell_apart`."""
    [old] = factorcells(config, tables, folder, [config.training.seed])
    training = telling.options(config.training)
    given = tables["train"], tables["dev"], folder
    run = finetune(old, *given, parts=telling.PARTS, training=training, unknown="group", resume=True)
    row = {"minutes": old.minutes() + run.minutes(), "parameters": run.model.parameter_count()}
    return Measured(row) | study.tested(run, tables["test"]) | tacl.told(run, tables, name)


def together(config: Config, tables: Tables, folder: Path, name: str, seeds: Sequence[int], ngram: bool) -> Measured:
    """FactorCells of some seeds, and an n-gram model beside them, in one mixture."""
    runs = factorcells(config, tables, folder, seeds or (config.training.seed,))
    models: list[Scorer] = [*runs, *([best_ngram(config, tables, folder)] if ngram else [])]
    made = Mixture(folder, models, None, np.full((1, len(models)), 1 / len(models)))
    if ngram:
        made = made.fitted(made.prepare(tables["dev"], unknown="group"))
    row = {"weights": made.weights[0].tolist(), "parameters": sum(run.model.parameter_count() for run in runs)}
    return Measured(row) | scored(made, tables) | which(made, runs[0], tables, name)


def which(scorer: Scorer, run: Run, tables: Tables, name: str) -> Measured:
    """Which contexts a scorer tells apart that knows those of `run`."""
    target = SETS[name].target
    if target is None:
        asked = Asked.of(name, tables, list(cities()))
        return told(asked.by_rule(scorer, tables["labelled_judged"], list(cities().values())))
    return told_by_rule(scorer, run.schema.variable(target), tables, name)


def made(name: str) -> dict[str, Baseline]:
    """The rows, which begin with runs of tacl.py; what trains runs for others comes first."""

    def of(seeds: Sequence[int], ngram: bool) -> Callable[..., Measured]:
        return partial(together, name=name, seeds=seeds, ngram=ngram)

    alone = "with ngram"
    told = {"told": Baseline(partial(taught, name=name), after=alone)} if SETS[name].target else {}
    return {
        **told,
        alone: Baseline(of((), ngram=True)),
        "ensemble": Baseline(of(study.SEEDS, ngram=False), seeded=False, after=alone),
        "ensemble with ngram": Baseline(of(study.SEEDS, ngram=True), seeded=False, after=alone),
    }


def options(name: str, row: str) -> Options:
    """What a row adds to the recipe of a set."""
    told = {"tell_apart": [f"{SETS[name].target}={WEIGHT}"], "tell_values": OTHERS}
    return {**tacl.experiment(name).rows[MODEL], **({"training": told} if row == "told" else {})}


def experiment(name: str) -> Experiment:
    """All of them on a set."""
    rows = {row: options(name, row) for row in made(name)}
    of, texts = tacl.experiment(name), partial(tables, name)
    return replace(of, name=f"tacl_beyond_{name}", rows=rows, tables=texts, baselines=made(name))


EXPERIMENTS = {name: experiment(name) for name in SETS}
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

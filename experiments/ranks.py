"""Which rank suits a FactorCell: 4 beside 12, on tables of few texts and of many, of few values and of many.

    python experiments/ranks.py scotus --data DATA --out OUT

Recipes and texts are those of tacl.py, whose FactorCell has one of the two ranks, or of thesis_sixteen.py, which has
none: there both are trained.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import study
import tacl
import thesis_sixteen
from corpora import Tables
from factorcell import files
from factorcell.model.run import Run
from study import Experiment, Measured, Options

RANKS = (4, 12)
MODEL = "factorcell"
OF_TACL, OF_THESIS = ("hotels", "hotels13", "dbpedia", "languages"), ("scotus", "reddit_titles")
SETS: Mapping[str, Experiment] = {
    **{name: replace(tacl.EXPERIMENTS[name], measure=partial(tacl.told, name=name)) for name in OF_TACL},
    **{name: thesis_sixteen.EXPERIMENTS[name] for name in OF_THESIS},
}


def of_rank(rank: int) -> str:
    """The name of a row."""
    return f"rank {rank}"


def rows(of: Experiment) -> dict[str, Options]:
    """FactorCells of both ranks on the texts of an experiment, or of the rank that its own has not."""
    plain = of.rows["unadapted"]
    made = {rank: {**plain, "model": {**tacl.options(MODEL)["model"], "rank": rank}} for rank in RANKS}
    there = of.config(study.Training(MODEL, 0), 1).model.rank if MODEL in of.rows else 0
    return {of_rank(rank): options for rank, options in made.items() if rank != there}


def measured(run: Run, tables: Tables, of: Experiment) -> Measured:
    """What is measured of the experiment's own models, and what rules may rest on: how much training text there is.

    In all and of a value, of which the unknown one is another, as `rules.Facts` counts.
    """
    values = max(len(variable.values) for variable in run.schema.categories)
    trained = files.read_json(run.folder / "training.json")
    sizes = {"trained_targets": trained["targets"], "values": values - 1, "texts_per_value": trained["texts"] / values}
    return of.measure(run, tables) | Measured(sizes)


def experiment(name: str) -> Experiment:
    """Both ranks on a set, but for what tacl.py has trained."""
    of = SETS[name]
    return replace(of, name=f"ranks_{name}", rows=rows(of), measure=partial(measured, of=of), baselines={})


EXPERIMENTS: Mapping[str, Experiment] = {name: experiment(name) for name in SETS}
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

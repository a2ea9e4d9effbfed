"""What the advice expects of the context of each set, for docs/advice.md, which has what trained models gain beside it.

    python experiments/advice.py --data DATA --out OUT --results experiments/results

The advice reads the training texts only; what was gained is that of the test, of the rows of tacl.py, thesis_sixteen.py
scotus and thesis_variables.py.
"""

import sys
from functools import partial
from pathlib import Path

import corpora
import study
import tacl
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.advice.advise import advise
from study import Baseline, Experiment, Measured, Row
from thesis_sixteen import EXPERIMENTS as SIXTEEN
from thesis_sixteen import scotus_tables

SCOTUS, ALL = "scotus", ""  # the set of several columns by themselves; all columns of a set
OF = {**tacl.EXPERIMENTS, SCOTUS: SIXTEEN[SCOTUS]}  # whose recipes say which columns a set has, and how texts are read
FIGURES = ("least", "expected", "most")


def tables(data: Path, folder: Path, share: float) -> Tables:
    """The training texts of each set."""
    made = {name: corpora.parts(data, folder, one.source, share)["train"] for name, one in tacl.SETS.items()}
    return {**made, SCOTUS: scotus_tables(data, folder, share)["train"]}


def advised(config: Config, tables: Tables, folder: Path, name: str) -> Measured:
    """The advice on a set: its figures for each column, and for all of them."""
    found = advise(tables[name], config.data, progress=True)
    every = [*found["columns"], {**found["all"], "column": ALL}]
    return Measured({"advice": {one["column"]: {key: one[key] for key in FIGURES} for one in every}})


def options(name: str) -> dict[str, Row]:
    """How the texts of a set are read."""
    of = OF[name]
    return {"data": of.config(of.trainings()[0], 1).to_dict()["data"]}


def measured(name: str) -> Baseline:
    """How a row is made, by no chance: `advise` draws by a seed of its own."""
    return Baseline(partial(advised, name=name), seeded=False)


EXPERIMENT = Experiment(
    "advice",
    tacl.EXPERIMENTS["agnews"].recipe,
    {name: options(name) for name in OF},
    tables,
    baselines={name: measured(name) for name in OF},
)


main = study.script(__file__, __doc__, EXPERIMENT)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

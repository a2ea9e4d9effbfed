"""What restrains the context of a FactorCell of hotels, of which there are few texts each: one thing changed, or two.

    python experiments/restraint.py hotels --data DATA --out OUT      # many hotels of few texts; hotels13: few of many

- the numbers of the context vector and of embeddings, and the rank
- forgetting: how often a value is read as the unknown one
- decay of all matrices, and a prior on embeddings and hashed buckets, which outweighs the evidence of few texts alone
- a hashed bias beside, with a coefficient for each word of each hotel

The recipe is that of tacl.py, whose FactorCell the rows are held against.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import study
import tacl
from study import Experiment, Options

CHANGES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {  # set -> row -> what of the model or the training is changed
    "hotels": {
        "vectors of 24": {"context_size": 24, "variable_size": 24},
        "vectors of 64": {"context_size": 64, "variable_size": 64},
        "no forgetting": {"dropout_context": 0.0},
        "vectors of 24, no forgetting": {"context_size": 24, "variable_size": 24, "dropout_context": 0.0},
        "decay 0.1": {"weight_decay": 0.1},
        "hash": {"output_bias": ["low_rank", "hash"]},
        "prior": {"value_prior": 1e-5},
        "hash, prior": {"output_bias": ["low_rank", "hash"], "value_prior": 1e-5},
    },
    "hotels13": {
        "vectors of 8": {"context_size": 8, "variable_size": 8},
        "rank 12": {"rank": 12},
        "forgetting 0.2": {"dropout_context": 0.2},
        "prior": {"value_prior": 1e-5},
        "hash, prior": {"output_bias": ["low_rank", "hash"], "value_prior": 1e-5},
    },
}
OF_TRAINING = ("weight_decay", "value_prior")


def rows(name: str) -> dict[str, Options]:
    """The FactorCell of a set, changed as each row says."""
    model = tacl.EXPERIMENTS[name].rows["factorcell"]["model"]
    made: dict[str, Options] = {}
    for row, changes in CHANGES[name].items():
        training = {option: value for option, value in changes.items() if option in OF_TRAINING}
        changed = {option: value for option, value in changes.items() if option not in OF_TRAINING}
        made[row] = {"model": {**model, **changed}, "training": training}
    return made


def experiment(name: str) -> Experiment:
    """All rows of a set."""
    of = tacl.EXPERIMENTS[name]
    return replace(of, name=f"restraint_{name}", rows=rows(name), measure=partial(tacl.told, name=name))


EXPERIMENTS: Mapping[str, Experiment] = {name: experiment(name) for name in CHANGES}
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

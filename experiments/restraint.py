"""What restrains the context of a FactorCell of hotels, of which there are few texts each: one thing changed, or two.

    python experiments/restraint.py hotels --data DATA --out OUT      # many hotels of few texts; hotels13: few of many

- the numbers of the context vector and of embeddings
- forgetting: how often a value is read as the unknown one
- decay of all matrices, and a prior on embeddings and hashed buckets, which outweighs the evidence of few texts alone
- a hashed bias beside, with a coefficient for each word of each hotel

The recipe is that of tacl.py, whose FactorCell the rows are held against; other ranks are those of ranks.py.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import study
import tacl
from study import Experiment, Options
from thesis_sparse import sized

HASH = {"output_bias": ["low_rank", "hash"]}
PRIOR = {"value_prior": 1e-5}
CHANGES: Mapping[str, Mapping[str, Options]] = {  # set -> row -> what is changed
    "hotels": {
        "vectors of 8": {"model": sized(8)},
        "vectors of 64": {"model": sized(64)},
        "no forgetting": {"model": {"dropout_context": 0.0}},
        "decay 0.1": {"training": {"weight_decay": 0.1}},
        "hash": {"model": HASH},
        "prior": {"training": PRIOR},
        "hash, prior": {"model": HASH, "training": PRIOR},
    },
    "hotels13": {
        "vectors of 8": {"model": sized(8)},
        "forgetting 0.2": {"model": {"dropout_context": 0.2}},
        "prior": {"training": PRIOR},
        "hash, prior": {"model": HASH, "training": PRIOR},
    },
}


def rows(name: str) -> dict[str, Options]:
    """The FactorCell of a set, changed as each row says."""
    model = tacl.EXPERIMENTS[name].rows["factorcell"]["model"]
    return {row: {**changes, "model": {**model, **changes.get("model", {})}} for row, changes in CHANGES[name].items()}


def experiment(name: str) -> Experiment:
    """All rows of a set."""
    of = tacl.EXPERIMENTS[name]
    return replace(of, name=f"restraint_{name}", rows=rows(name), measure=partial(tacl.told, name=name))


EXPERIMENTS: Mapping[str, Experiment] = {name: experiment(name) for name in CHANGES}
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

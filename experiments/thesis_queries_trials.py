"""Figure 5.1 of the thesis: whether models of better perplexity complete better, by models of random sizes.

    python experiments/thesis_queries_trials.py --data DATA --out OUT

Eight models of each kind, over the recipe and the texts of thesis_queries.py; their sizes and how long they are trained
are drawn, the same for all kinds. A model has one seed: what is told of them is of all together.
"""

import sys

import draws
import study
import thesis_queries
from corpora import Tables
from factorcell.model.run import Run
from study import Experiment, Measured, Options
from thesis_queries import EXPERIMENT as QUERIES
from thesis_queries import ROWS, SPLIT, ranks, replayed

TRIALS = 8  # of each kind
SIZES = {"hidden_size": (50, 300), "embedding_size": (12, 32), "variable_size": (4, 30), "rank": (4, 50)}
PASSES = (0.25, 1.5)  # all drawn evenly in their logarithms
EVERY = 6  # one text of so many is completed
POINTS = draws.evenly(TRIALS, (*SIZES, "passes"))


def drawn(kind: str, number: int) -> Options:
    """The options of a trial, the same on every machine and for all kinds."""
    point = POINTS[number]
    sizes = {key: round(draws.size(ends, point[key])) for key, ends in SIZES.items()}
    passes = round(draws.size(PASSES, point["passes"]), 2)
    model = {**ROWS[kind]["model"], **sizes, "context_size": sizes["variable_size"]}
    return {**ROWS[kind], "model": model, "training": {"epochs": passes, "evaluations": 1}}


def measure(run: Run, tables: Tables) -> Measured:
    """Perplexity and mean reciprocal rank of the same texts."""
    row, streams, rows = replayed(run, tables, EVERY)
    figures = ranks(rows["mrr"], streams, "mrr", {"": SPLIT[""]})
    return Measured({**row, "mrr": figures["mrr"].ratio}, figures)


EXPERIMENT = Experiment(
    "queries_trials",
    QUERIES.recipe,
    {f"{kind} {number:02}": drawn(kind, number) for number in range(TRIALS) for kind in ROWS},
    thesis_queries.tables,
    measure,
    seeds=(0,),
)
main = study.script(__file__, __doc__, EXPERIMENT)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Table A.1 of the thesis: low-rank and sparse softmax biases over an unadapted recurrent layer.

    python experiments/thesis_sparse.py --data DATA --out OUT

A search finds a lambda of each variable, the same for all at first and random ones then, and the size of embeddings;
the best on dev stands in the table. Beside it are the threshold as the thesis prints it, which nearly every coefficient
passes, control codes, a model for each rating and their mixture, and n-grams.
"""

import random
import sys
from pathlib import Path

import numpy as np

import corpora
import study
import tacl
from corpora import Tables
from factorcell.data.corpus import known_targets
from factorcell.evaluation.text_figures import TextSums, key_of, per_text
from factorcell.model.run import Run
from study import Experiment, Measured, Options
from tacl_baselines import counted, per_value

VARIABLES = ("hotel", "city", "rating")
LAMBDAS = ("0", "1e-6", "1e-5", "1e-4")  # nats a target
SIZES = (8, 24, 64)  # numbers of an embedding
SIZE = 24  # where there is a sparse bias too
TRIALS = 6
TOP = 3
BASELINES = {**per_value("rating"), **counted()}


def penalties() -> list[dict[str, str]]:
    """A lambda of each variable for every trial: first each for all, then any."""
    drawn, random_ = [dict.fromkeys(VARIABLES, one) for one in LAMBDAS], random.Random(0)
    while len(drawn) < TRIALS:
        one = {name: random_.choice(LAMBDAS) for name in VARIABLES}
        drawn += [one] if one not in drawn else []
    return drawn


def rows() -> dict[str, Options]:
    """No bias, the low-rank ones, and sparse ones with and without a low-rank one; then what they are held against."""
    made: dict[str, Options] = {"none": {"model": {"output_bias": []}}}
    for name in ("low_rank_each", "low_rank"):
        for number, size in enumerate(SIZES, 1):
            made[f"{name}-{number}"] = {"model": {"output_bias": [name], **sized(size)}}
    for number, each in enumerate(penalties(), 1):
        l1 = {"training": {"sparse_l1": [f"{variable}={value}" for variable, value in each.items()]}}
        both = {"output_bias": ["low_rank_each", "sparse"], **sized(SIZE)}
        made[f"sparse-{number}"] = {"model": {"output_bias": ["sparse"]}, **l1}
        made[f"low_rank_each+sparse-{number}"] = {"model": both, **l1}
    made["prefix"] = tacl.options("prefix")
    return made | dict.fromkeys(BASELINES, made["none"])


def sized(size: int) -> dict[str, int]:
    """The options of embeddings of so many numbers."""
    return {"context_size": size, "variable_size": size}


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Hotel reviews."""
    return corpora.parts(data, folder, "hotels", share)


def measure(run: Run, tables: Tables) -> Measured:
    """How often the next word is among the three most probable ones."""
    corpus = run.prepare(tables["test"], unknown="group")
    top = run.ranks(corpus) <= TOP
    row = {"top_3": float(top.mean()), "top_3_known": float(top[known_targets(corpus)].mean())}
    sums = TextSums(key_of(corpus, "top"), per_text(top, corpus), corpus.lengths.astype(np.float64))
    return Measured(row, {"top_3": sums})


EXPERIMENT = Experiment("sparse", "thesis_hotels.toml", rows(), tables, measure, baselines=BASELINES)
main = study.script(__file__, __doc__, EXPERIMENT)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

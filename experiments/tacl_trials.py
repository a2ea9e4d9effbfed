"""Figures 1, 3 and 5 of the TACL paper (thesis: 4.2, 4.4, 4.5): models of random sizes, in perplexity and accuracy.

    python experiments/tacl_trials.py agnews --data DATA --out OUT

Fourteen models of each class, none stopped early: sizes and dropout are drawn, the same for all classes; the rest is
the recipe of the set. A model has one seed, as in the paper: what is told is of all together. Where units are words,
contexts are told apart by samples of the vocabulary, as in print.
"""

import sys
from dataclasses import replace
from functools import partial

import draws
import study
import tacl
from corpora import Tables
from factorcell.config import PAPER_MODELS
from factorcell.model.run import Run
from measures import SAMPLES
from study import Experiment, Measured, Options

ADAPTED = PAPER_MODELS[1:]
WORDS = ("agnews", "dbpedia", "hotels", "imdb")  # sets of figure 4.2
CHARACTERS = ("languages", "places")  # of figure 4.4
DRAWN = (*WORDS, *CHARACTERS)  # of figure 4.5; other sets can be drawn too
TRIALS = 14  # of each class
SIZES = {"embedding_size": (50, 200), "hidden_size": (60, 250), "context_size": (2, 24)}  # even in their logarithms
RANKS = (1, 30)
DROPOUT = (0.0, 0.3)
MANY = ("hotels", "hotels13", "tweets", "places")  # sets whose contexts are too many for a bias of each value
EMBEDDED = {"hotels": {"variable_size": 8}}  # where a value's embedding is not that of the recipe, which was 8 then
POINTS = draws.evenly(TRIALS, (*SIZES, "rank", "dropout", "bias"))


def drawn(name: str, model: str, number: int) -> Options:
    """The options of a trial, the same on every machine and for all classes."""
    point = POINTS[number]
    sizes = {key: round(draws.size(ends, point[key])) for key, ends in SIZES.items()}
    rank = RANKS[0] + int((RANKS[1] + 1 - RANKS[0]) * point["rank"])
    dropout = round(DROPOUT[0] + (DROPOUT[1] - DROPOUT[0]) * point["dropout"], 3)
    bias = "one_hot" if point["bias"] < 0.5 and name not in MANY else "low_rank"
    made = dict(tacl.options(model)["model"])
    sizes |= EMBEDDED.get(name, {})
    return {"model": {**made, **sizes, "rank": rank, "dropout_recurrent": dropout, "output_bias": [bias]}}


def measure(run: Run, tables: Tables, name: str) -> Measured:
    """Which contexts a run tells apart; none of `held`, since no temperature of a trial is told."""
    samples = SAMPLES if tacl.SETS[name].unit == "word" else 0
    return tacl.told(run, {part: table for part, table in tables.items() if part != "held"}, name, samples)


def experiment(name: str) -> Experiment:
    """All trials of a set, one of each class after the other."""
    of = tacl.experiment(name)
    rows = {f"{model} {number:02}": drawn(name, model, number) for number in range(TRIALS) for model in ADAPTED}
    return replace(of, name=f"tacl_trials_{name}", rows=rows, measure=partial(measure, name=name), seeds=(0,))


EXPERIMENTS = {name: experiment(name) for name in tacl.SETS}
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

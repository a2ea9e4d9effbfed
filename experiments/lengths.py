"""Texts of free length by a stochastic beam: the most probable ones, as chapter 6 has them, beside ours, by the mean.

    python experiments/lengths.py imdb --data DATA --out OUT    # and hotels

Log probability is summed over the tokens of a text as printed, or divided by their number; what it makes of texts whose
length is given, as in tables 6.4 and 6.5, is the same. The FactorCells of tacl.py write for ratings, by beams as wide
as there; what is not trained yet is.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import study
import tacl
from corpora import Tables
from factorcell.config import PAPER_MODELS
from factorcell.evaluation.specificity import write
from factorcell.generation.generate import GenerationOptions
from factorcell.model.run import Run
from study import Experiment, Measured
from thesis_specificity import BEAM, KEPT, SHORTER, file_of, fitting, judge_of, of_ratings

MODEL, TARGET = PAPER_MODELS[-1], "rating"
PENALTIES = {"sum": 0.0, "mean": 1.0}  # of the length: as printed, and ours
LEAST, MOST = 1, 70  # tokens of a text


def of_free_length(options: GenerationOptions) -> GenerationOptions:
    """The same beam; its texts end where they like."""
    return replace(options, min_tokens=LEAST, max_tokens=MOST)


TEXTS = {"imdb": 200, "hotels": 1000}
OPTIONS = {"imdb": of_free_length(BEAM), "hotels": of_free_length(SHORTER)}


def measure(run: Run, tables: Tables, name: str) -> Measured:
    """How many of a run's texts are judged to be of the rating that they were written for, either way."""
    contexts = of_ratings(run, TEXTS[name])
    judge = judge_of(run, tables["train"], tables["test"], TARGET)
    found = Measured({})
    for by, penalty in PENALTIES.items():
        options, path = replace(OPTIONS[name], length_penalty=penalty), file_of(run.folder, by, TEXTS[name])
        texts = write(run, [context for context, _ in contexts], options, path)
        told = fitting(judge, texts, contexts)
        row = {f"{key}_{by}": told.row[key] for key in ("specificity", *KEPT)}
        figures = {f"{key}_{by}": sums for key, sums in told.figures.items()}
        found |= Measured({**row, "real": told.row["real"]}, figures)
    return found


def experiment(name: str) -> Experiment:
    """The FactorCells of a set."""
    of = tacl.experiment(name)
    rows = {MODEL: of.rows[MODEL]}
    return replace(of, name=f"lengths_{name}", rows=rows, runs=of.name, measure=partial(measure, name=name))


EXPERIMENTS: Mapping[str, Experiment] = {name: experiment(name) for name in TEXTS}
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

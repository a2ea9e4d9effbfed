"""Do sampled texts fit the rating that they were written for? fastText judges, which has learned from real ones.

    python experiments/sampled.py hotels --data DATA --out OUT         # for docs/generation.md; and imdb
    python experiments/sampled.py hotels_trials --data DATA --out OUT  # beside figures 6.1 and 6.2, which are of a beam

The models are those of tacl.py, or of tacl_trials.py; what is not trained yet is. Each writes as many texts for every
rating, hotels drawn by chance, by sampling at temperature 1.
"""

import sys
from dataclasses import replace
from functools import partial

import study
import tacl
import tacl_trials
from corpora import Tables
from factorcell.evaluation.specificity import write
from factorcell.generation.generate import GenerationOptions
from factorcell.model.run import Run
from study import Experiment, Measured
from thesis_specificity import file_of, fitting, judge_of, of_ratings

SETS = ("hotels", "imdb")
TARGET, TEXTS, OF_TRIALS = "rating", 1000, 4000  # texts of each model
OPTIONS = GenerationOptions("sample", max_tokens=70)


def measure(run: Run, tables: Tables, number: int = TEXTS) -> Measured:
    """How many of a run's texts are judged to be of the rating that they were written for."""
    contexts = of_ratings(run, number)
    if not contexts:
        return Measured({})
    judge = judge_of(run, tables["train"], tables["test"], TARGET)
    path = file_of(run.folder, "sampled", number)
    return fitting(judge, write(run, [context for context, _ in contexts], OPTIONS, path), contexts)


def experiment(of: Experiment) -> Experiment:
    """What the models of an experiment write."""
    return replace(of, name=of.name.replace("tacl", "sampled"), runs=of.name, measure=measure)


DRAWN = experiment(tacl_trials.experiment("hotels"))
EXPERIMENTS = {name: experiment(tacl.experiment(name)) for name in SETS}
EXPERIMENTS["hotels_trials"] = replace(DRAWN, measure=partial(measure, number=OF_TRIALS))
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Table A.1 of the thesis: low-rank and sparse softmax biases over an unadapted recurrent layer.

Rows have a penalty for each column, the same for all at first and random ones then, and the size of embeddings.
"""

from pathlib import Path

import numpy as np

import corpora
from corpora import Tables
from factorcell.evaluation.text_figures import TextSums, key_of, per_text
from factorcell.model.run import Run
from study import ROWS, Experiment, Measured
from tacl_baselines import counted, per_value

VARIABLES = ("hotel", "city", "rating")
TOP = 3


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Return the hotel reviews."""
    return corpora.parts(data, folder, "hotels", share)


def measure(run: Run, tables: Tables) -> Measured:
    """Measure how often the next word is among the three most probable ones."""
    corpus = run.prepare(tables["test"], unknown="group")
    top = run.ranks(corpus) <= TOP
    sums = TextSums(key_of(corpus, "top"), per_text(top, corpus), corpus.lengths.astype(np.float64))
    return Measured({"top_3": float(top.mean())}, {"top_3": sums})


BASELINES = {**per_value("rating"), **counted()}
EXPERIMENT = Experiment("sparse", "thesis_hotels.toml", ROWS["sparse"], tables, measure, baselines=BASELINES)

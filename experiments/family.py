"""Each cell, adaptation, bias and loss by itself, and some together, on news: short trainings, to be compared only.

    python experiments/family.py --data DATA --out OUT

All share the recipe agnews_words.toml, cut to three passes. The section of the texts of the test is told by Bayes'
rule. Beside them are a model for each section, n-grams and classifiers (tacl_baselines.py).
"""

import sys
from pathlib import Path
from typing import Any

import corpora
import study
from corpora import Tables
from factorcell.config import CELLS
from measures import told_apart
from study import Experiment, Options
from tacl_baselines import classifiers, counted, per_value

ADAPTS = ("prefix", "concat", "scale", "scale_split", "factor")
BIASES = ("low_rank", "low_rank_each", "one_hot", "sparse", "hash")
UNADAPTED, BASE = "unadapted", ("concat", "low_rank")
JOINED = (
    ("prefix", "low_rank"),
    BASE,
    ("concat", "factor", "low_rank"),
    ("scale", "factor", "low_rank"),
    ("concat", "scale", "factor", "low_rank", "hash"),
)
SHORT = {"epochs": 3, "evaluations": 1}  # of one pass models are still behind n-grams
BASELINES = {**per_value("section"), **counted(), **classifiers("section", "word")}


def model(*names: str, **options: Any) -> Options:
    """The options of a model with the adaptations and biases `names`."""
    adapt = [name for name in names if name in ADAPTS]
    biases = [name for name in names if name in BIASES]
    return {"model": {"adapt": adapt, "output_bias": biases, **options}, "training": SHORT}


def rows() -> dict[str, Options]:
    """Adaptations alone and together, and what else can be chosen."""
    made = {UNADAPTED: model(), **{name: model(name) for name in (*ADAPTS, *BIASES)}}
    made |= {"+".join(names): model(*names) for names in JOINED}
    return {**made, **variants(), **dict.fromkeys(BASELINES, model())}


def variants() -> dict[str, Options]:
    """Kinds of cells, layers, dropout and losses over a ConcatCell."""
    made = {f"cell {cell}": model(*BASE, cell=cell) for cell in CELLS if cell != "coupled"}
    made["two layers"] = model(*BASE, layers=2)
    made["layer normalisation"] = model(*BASE, layer_norm=True)
    made["no dropout"] = model(*BASE, dropout_recurrent=0.0, dropout_input=0.0, dropout_output=0.0)
    made["variational dropout"] = model(*BASE, variational=True)
    made["loss sampled_text"] = {**model(*BASE), "training": {**SHORT, "loss": "sampled_text", "samples": 150}}
    return made


def tables(data: Path, folder: Path, share: float) -> Tables:
    """News, split at spaces; the section of the texts of the test is asked for."""
    given = corpora.parts(data, folder, "agnews_words", share)
    return {**given, "judged": given["test"]}


EXPERIMENT = Experiment(
    "family",
    "agnews_words.toml",
    rows(),
    tables,
    lambda run, tables: told_apart(run, tables, "section"),
    baselines=BASELINES,
)
main = study.script(__file__, __doc__, EXPERIMENT)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

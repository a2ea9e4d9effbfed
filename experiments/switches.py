"""Parts as the papers print them beside ours: trainings that differ in one of them, on words and on characters.

    python experiments/switches.py agnews --data DATA --out OUT  # by section; places, tweets by city, films by rating

- context vector: the joint layer ends in tanh, ReLU (as the TACL paper has it) or nothing; or there is no such layer
- number network: none, one layer, or the two of the recipe
- rescaling: 1 + C c as ours, C c as printed
- layer normalisation: of gates and memory as ours, of the gates alone as printed; of films, where print has it
- classification: samples of the vocabulary by rank as ours, by unigrams as printed, and all of it

Trainings are short; the recipe is that of tacl.py.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import study
import tacl
from corpora import Tables
from factorcell.evaluation.classification import classify
from factorcell.model.run import Run
from measures import SAMPLES, Cities
from study import Experiment, Measured, Options
from tacl import SETS

OURS = "ours"
EPOCHS = {"agnews": 1.5, "places": 1.0, "imdb": 1.0, "tweets": 1.0}
NO_NETWORK, ONE_LAYER = "no number network", "number network of one layer"
NORMALISED = "layer_norm"
PRINTED_OF = {  # what is trained of some sets alone: what print says of films, what is left of numbers
    "imdb": (OURS, NORMALISED),
    "tweets": (OURS, NO_NETWORK, ONE_LAYER),
}


def rows(name: str) -> dict[str, Options]:
    """The rows of a set: of places and tweets what concerns numbers, of others what concerns a single category."""
    whole = tacl.options("factorcell")["model"]

    def of(**model: Any) -> Options:
        return {"model": {**whole, **model}, "training": {"epochs": EPOCHS[name], "evaluations": 1}}

    made = {OURS: of(), "relu": of(context_layer="relu"), "linear": of(context_layer="linear")}
    if isinstance(SETS[name].target, Cities):
        made[NO_NETWORK] = of(number_layers=0)
        made[ONE_LAYER] = of(number_layers=1)
        made["no joint layer"] = of(context_layer="none", number_size=16)
    else:
        made["no joint layer"] = of(context_layer="none")
    made |= {
        "scale": of(adapt=["scale"]),
        NORMALISED: of(layer_norm=True),
    }
    return {row: made[row] for row in PRINTED_OF.get(name, made)}


def measure(run: Run, tables: Tables, name: str) -> Measured:
    """Which contexts are told apart; of sets of words also by samples of the vocabulary."""
    found, target = tacl.told(run, tables, name), SETS[name].target
    if isinstance(target, Cities):
        return found
    row: dict[str, float] = {}
    for proposal in ("rank", "unigram"):
        told = classify(run, tables["judged"], target, unknown="group", samples=SAMPLES, proposal=proposal)
        row[f"accuracy_{proposal}"] = float(told.metrics()["accuracy"])
    return found | Measured(row)


def experiment(name: str) -> Experiment:
    """All rows of a set."""
    of = tacl.experiment(name)
    return replace(of, name=f"switches_{name}", rows=rows(name), measure=partial(measure, name=name))


EXPERIMENTS: Mapping[str, Experiment] = {name: experiment(name) for name in EPOCHS}
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

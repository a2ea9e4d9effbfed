"""The tables of the front page and of docs/results.md: what is reached on the sets of the TACL paper, a line each.

A set stands there when each of its four models has as many trainings as there are seeds.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from factorcell.config import PAPER_MODELS
from pages.markdown import NO_ROW, markdown, shown, with_none
from pages.results import SEEDS, Results, published, rows_of
from tacl import SETS
from tacl_beyond import MODEL

FRONT = {  # sets, and what they are
    "agnews": "AG News, words; topic",
    "dbpedia": "DBpedia, words; category",
    "hotels": "short hotel reviews, words; hotel, rating",
    "hotels13": "long hotel reviews, words; hotel, rating",
    "imdb": "film reviews, words; rating",
    "languages": "sentences of nine languages, characters; language",
    "tweets": "tweets, characters; latitude, longitude",
    "places": "names of places, characters; latitude, longitude",
}
OTHERS = ("tacl_baselines", "tacl_beyond")
SCORERS = {  # rows that have a perplexity -> what they are, in this order
    **{model: model for model in PAPER_MODELS},
    "prefix": "control codes",
    "mixture": "a model per value, mixed",
    "ngram": "n-grams",
    "with ngram": "factorcell and n-grams",
    "ensemble": "three factorcells",
    "ensemble with ngram": "three and n-grams",
}
TELLERS = {  # rows that tell contexts apart
    **{model: model for model in PAPER_MODELS[1:]},
    "prefix": "control codes",
    "separate": "a model per value",
    "told": "factorcell, `--tell-apart`",
    "ensemble": "three factorcells",
    "bayes": "naive Bayes",
    "linear": "linear",
    "fasttext": "fastText",
}


def whole(results: Path, suffix: str) -> dict[str, Results]:
    """The rows of the sets that are trained whole; first those of the paper's models."""
    found = {name: Results.read(results, f"tacl_{name}{suffix}") for name in FRONT}
    return {name: one for name, one in found.items() if all(_trained(one, model) for model in PAPER_MODELS)}


def _trained(found: Results, model: str) -> bool:
    return int(found.row(model).get("trainings", 0)) >= SEEDS


def front(results: Path, suffix: str = "") -> dict[str, str]:
    """The paper's models: perplexities, the FactorCell's gain and its accuracy."""
    lines = []
    for name, found in whole(results, suffix).items():
        told = f"{found.shown(MODEL, 'accuracy', '.1f', 100.0)} ({found.row(MODEL)['candidates']} values)"
        figures = [found.shown(model, "perplexity_known") for model in PAPER_MODELS]
        lines.append([FRONT[name], *figures, found.gain(MODEL), told])
    header = ["perplexity per unit: texts, unit; context", *PAPER_MODELS, f"gain of {MODEL}", "its accuracy, %"]
    return {"Results": with_none(header, lines)}


def results(folder: Path, suffix: str = "") -> dict[str, str]:
    """All that was trained on each set: perplexities, and accuracies as a classifier has them."""
    every = {}
    for name, found in whole(folder, suffix).items():
        others = (rows_of(Results.read(folder, f"{kind}_{name}{suffix}")) for kind in OTHERS)
        every[name] = Results.of(list(itertools.chain(rows_of(found), *others)))
    made = {}
    for unit in ("word", "character"):
        sets = {name: found for name, found in every.items() if SETS[name].unit == unit}
        head = f"perplexity per {unit}, known targets"
        made[f"Perplexity per {unit}"] = _matrix(head, sets, SCORERS, "perplexity_known", ".2f")
    made["Accuracy"] = _matrix("accuracy, %", every, TELLERS, "classifier_accuracy", ".1f", 100.0)
    return {**made, "The published code": published_code(every)}


def published_code(every: Mapping[str, Results]) -> str:
    """The code of the TACL paper on news, of single trainings and dev, beside ours of the test."""
    found = every.get("agnews", Results.of([]))
    lines = []
    for model, (perplexity, *accuracy) in published()["code"].items():
        ours = [found.shown(model, "perplexity_known"), found.shown(model, "accuracy", ".1f", 100.0)]
        lines.append([model, shown(perplexity, ".0f"), *(shown(one, ".1f") for one in accuracy or [None]), *ours])
    perplexity, accuracy = "perplexity per word, known targets", "accuracy, %"
    heads = [f"{whose}: {what}" for whose in ("published code, dev", "ours, test") for what in (perplexity, accuracy)]
    return markdown(["model", *heads], lines)


def _matrix(
    head: str, sets: Mapping[str, Results], rows: Mapping[str, str], key: str, form: str, scale: float = 1.0
) -> str:
    """A column for each set, a line for each row that any of them has."""
    lines: list[Sequence[str]] = []
    for row, what in rows.items():
        figures = [found.shown(row, key, form, scale) for found in sets.values()]
        lines += [[what, *figures]] if any(figures) else []
    return markdown([head, *sets], lines) if lines else NO_ROW

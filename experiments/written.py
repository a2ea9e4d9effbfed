"""Chapter 6 of the thesis: does the text that a model writes fit its context? fastText judges, trained on real texts.

specificity_imdb, _ratings, _hotels: tables 6.4 and 6.5, by a stochastic beam; _prefix_...: the same of control codes
specificity_trials_ratings, _hotels: figures 6.1 to 6.4, models of random sizes
sampled_hotels, _imdb, _trials_hotels: the same by sampling at temperature 1

The models are those of tacl.py, tacl_baselines.py and variations.py. Films and hotels are written for their rating,
which every model was given; hotels also for the class of their chain, which none was, at five stars.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import corpora
import hotels
import tacl
import tacl_baselines
import variations
from corpora import Tables
from factorcell.evaluation import text_figures
from factorcell.generation.generate import GenerationOptions, category_values
from factorcell.model.run import Run
from specificity import Judge, write
from study import Experiment, Measured

# The first words of a review, none of which ends before: all are as long, and the most probable one is kept.
BEAM = GenerationOptions(
    "stochastic", max_tokens=70, min_tokens=70, no_repeat_ngram=3, width=120, grow=8, length_penalty=0.0
)
SHORTER = replace(BEAM, max_tokens=40, min_tokens=40, width=50, grow=4)
SAMPLED = GenerationOptions("sample", max_tokens=70)
Wanted = tuple[dict[str, str], str]  # a context, and the value that its text is to be judged as


@dataclass(frozen=True)
class Writing:
    """Texts that models write: to be judged by `target`, whose values have an `order`, by `options`, in files `name`.

    Each model of a table writes `texts`, each model of random sizes `of_trials`.
    """

    name: str
    target: str
    options: GenerationOptions
    texts: int
    of_trials: int = 0
    order: tuple[str, ...] = ()


SETS = {
    "imdb": Writing("imdb", "rating", BEAM, 200),
    "ratings": Writing("ratings", "rating", SHORTER, 2000, 1000),
    "hotels": Writing("hotels", "class", SHORTER, 400, 1000, hotels.CLASSES),
}
BY_SAMPLING = Writing("sampled", "rating", SAMPLED, 1000, 4000)


def draw_contexts(run: Run, how: Writing, number: int) -> list[Wanted]:
    """Return about `number` contexts, the same for all models: every rating as often, or random hotels of chains."""
    random = np.random.default_rng(0)
    if how.target == "class":
        classes = {hotel: hotels.class_of(hotel) for hotel in run.schema.variable("hotel").values[1:]}
        of_chains = [(hotel, hotel_class) for hotel, hotel_class in classes.items() if hotel_class]
        drawn = random.integers(len(of_chains), size=number) if of_chains else ()
        return [({"hotel": of_chains[place][0], "rating": "5"}, of_chains[place][1]) for place in drawn]
    ratings = category_values(run.schema, "rating")
    contexts = [({"rating": rating}, rating) for rating in ratings for _ in range(number // len(ratings))]
    if "hotel" not in [variable.name for variable in run.schema.variables]:
        return contexts
    names = run.schema.variable("hotel").values[1:]
    if not names:  # in a trial all of them may be rare
        return []
    return [({**context, "hotel": names[random.integers(len(names))]}, value) for context, value in contexts]


def tables(how: Writing, of: Experiment, data: Path, folder: Path, share: float) -> Tables:
    """Return the texts that models are trained on, and those that the judge learns from and is judged by."""
    parts = of.tables(data, folder, share)
    for part in ("train", "test"):
        source = parts[part]
        parts[f"labelled_{part}"] = source
        if how.target == "class":
            classed = source.with_name(f"{source.stem}-classes.parquet")
            parts[f"labelled_{part}"] = corpora.create_once(classed, partial(hotels.with_classes, source))
    return parts


def measure(run: Run, tables: Tables, how: Writing, number: int) -> Measured:
    """Measure how many of a run's texts are judged to be what they were written for."""
    contexts = draw_contexts(run, how, number)
    if not contexts:
        return Measured({})
    judge = Judge(tables["labelled_train"], tables["labelled_test"], run.config, how.target, how.order, run.tokenizer)
    path = run.folder.with_name(f"{run.folder.name}-{how.name}-{number}.jsonl")
    texts = write(run, [context for context, _ in contexts], how.options, path)
    row, fits = judge.judge([text["text"] for text in texts], [value for _, value in contexts])
    row = {"specificity": row.pop("accuracy", float("nan")), **row, "real": judge.real}
    key = hashlib.sha256(json.dumps(contexts).encode()).hexdigest()[:16]
    return Measured(row, {"specificity": text_figures.accuracy_sums(key, fits, np.ones_like(fits))})


def experiment(name: str, of: Experiment, how: Writing, trials: bool = False) -> Experiment:
    """Return what the models of an experiment write."""
    measured = partial(measure, how=how, number=how.of_trials if trials else how.texts)
    return replace(of, name=name, runs=of.name, tables=partial(tables, how, of), measure=measured, baselines={})


EXPERIMENTS: dict[str, Experiment] = {}
for name, how in SETS.items():
    data_set = "imdb" if name == "imdb" else "hotels"
    codes = tacl_baselines.EXPERIMENTS[data_set]
    codes = replace(codes, rows={"prefix": codes.rows["prefix"]}, measure=tacl.EXPERIMENTS[data_set].measure)
    trials = variations.EXPERIMENTS["tacl_trials_hotels"]
    EXPERIMENTS[f"specificity_{name}"] = experiment(f"specificity_{name}", tacl.EXPERIMENTS[data_set], how)
    EXPERIMENTS[f"specificity_prefix_{name}"] = experiment(f"specificity_prefix_{name}", codes, how)
    if how.of_trials:
        EXPERIMENTS[f"specificity_trials_{name}"] = experiment(f"specificity_trials_{name}", trials, how, True)
for name in ("hotels", "imdb"):
    EXPERIMENTS[f"sampled_{name}"] = experiment(f"sampled_{name}", tacl.EXPERIMENTS[name], BY_SAMPLING)
EXPERIMENTS["sampled_trials_hotels"] = experiment("sampled_trials_hotels", trials, BY_SAMPLING, True)

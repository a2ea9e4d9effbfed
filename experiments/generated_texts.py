"""Thesis chapter 6: the share of generated texts that fit their context, judged by fastText trained on real texts.

specificity_imdb, _ratings, _hotels: texts of a stochastic beam (tables 6.4 and 6.5)
specificity_prefix_imdb, _ratings, _hotels: texts of models with control codes
specificity_trials_ratings, _hotels: figures 6.1 to 6.4, models of random sizes
sampled_hotels, _imdb, _trials_hotels: texts sampled at temperature 1

The models are those of tacl.py, tacl_baselines.py and variations.py. Reviews are generated for a rating, which is in
the context of every model. Hotel reviews are also generated for hotels of a class of chains, which no model reads;
their rating is five stars.
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
from factorcell.runs.run import Run
from specificity import Judge, write_texts
from study import Experiment, Measurement

# All generated beginnings of reviews have the same length, and the most probable one is used.
BEAM = GenerationOptions(
    "stochastic", max_tokens=70, min_tokens=70, no_repeat_ngram=3, width=120, branching=8, length_penalty=0.0
)
SHORT_BEAM = replace(BEAM, max_tokens=40, min_tokens=40, width=50, branching=4)
SAMPLED = GenerationOptions("sample", max_tokens=70)
ContextAndValue = tuple[dict[str, str], str]  # a context, and the value that its text should express


@dataclass(frozen=True)
class WritingTask:
    """Texts to generate with `options`, and the column `target` that they are judged by; `order` sorts its values.

    Each model of a table writes `texts` texts, each model of random sizes `texts_of_trials`. File names contain `name`.
    """

    name: str
    target: str
    options: GenerationOptions
    texts: int
    texts_of_trials: int = 0
    order: tuple[str, ...] = ()


SETS = {
    "imdb": WritingTask("imdb", "rating", BEAM, 200),
    "ratings": WritingTask("ratings", "rating", SHORT_BEAM, 2000, 1000),
    "hotels": WritingTask("hotels", "class", SHORT_BEAM, 400, 1000, hotels.CLASSES),
}
BY_SAMPLING = WritingTask("sampled", "rating", SAMPLED, 1000, 4000)


def draw_contexts(run: Run, task: WritingTask, number: int) -> list[ContextAndValue]:
    """Return about `number` contexts, the same for all models: all ratings equally often, or random chain hotels."""
    random = np.random.default_rng(0)
    if task.target == "class":
        classes = {hotel: hotels.class_of(hotel) for hotel in run.schema.variable("hotel").values[1:]}
        chain_hotels = [(hotel, hotel_class) for hotel, hotel_class in classes.items() if hotel_class]
        positions = random.integers(len(chain_hotels), size=number) if chain_hotels else ()
        return [({"hotel": chain_hotels[place][0], "rating": "5"}, chain_hotels[place][1]) for place in positions]
    ratings = category_values(run.schema, "rating")
    contexts = [({"rating": rating}, rating) for rating in ratings for _ in range(number // len(ratings))]
    if "hotel" not in [variable.name for variable in run.schema.variables]:
        return contexts
    names = run.schema.variable("hotel").values[1:]
    if not names:  # in a trial all values may be rare
        return []
    return [({**context, "hotel": names[random.integers(len(names))]}, value) for context, value in contexts]


def tables(task: WritingTask, source: Experiment, data: Path, folder: Path, share: float) -> Tables:
    """Write the texts that the models and the judge are trained on and evaluated on."""
    parts = source.tables(data, folder, share)
    for part in ("train", "test"):
        path = parts[part]
        parts[f"labelled_{part}"] = path
        if task.target == "class":
            with_classes = path.with_name(f"{path.stem}-classes.parquet")
            parts[f"labelled_{part}"] = corpora.create_once(with_classes, partial(hotels.with_classes, path))
    return parts


def measure(run: Run, tables: Tables, task: WritingTask, number: int) -> Measurement:
    """Generate texts and measure how many the judge assigns to the value that they were generated for."""
    contexts = draw_contexts(run, task, number)
    if not contexts:
        return Measurement({})
    judge = Judge(tables["labelled_train"], tables["labelled_test"], run.config, task.target, task.order, run.tokenizer)
    path = run.folder.with_name(f"{run.folder.name}-{task.name}-{number}.jsonl")
    texts = write_texts(run, [context for context, _ in contexts], task.options, path)
    row, fits = judge.judge([text["text"] for text in texts], [value for _, value in contexts])
    row = {"specificity": row.pop("accuracy", float("nan")), **row, "real": judge.real}
    key = hashlib.sha256(json.dumps(contexts).encode()).hexdigest()[:16]
    return Measurement(row, {"specificity": text_figures.accuracy_sums(key, fits, np.ones_like(fits))})


def experiment(name: str, source: Experiment, task: WritingTask, trials: bool = False) -> Experiment:
    measured = partial(measure, task=task, number=task.texts_of_trials if trials else task.texts)
    return replace(
        source, name=name, runs=source.name, tables=partial(tables, task, source), measure=measured, baselines={}
    )


EXPERIMENTS: dict[str, Experiment] = {}
for name, task in SETS.items():
    data_set = "imdb" if name == "imdb" else "hotels"
    codes = tacl_baselines.EXPERIMENTS[data_set]
    codes = replace(codes, rows={"prefix": codes.rows["prefix"]}, measure=tacl.EXPERIMENTS[data_set].measure)
    trials = variations.EXPERIMENTS["tacl_trials_hotels"]
    EXPERIMENTS[f"specificity_{name}"] = experiment(f"specificity_{name}", tacl.EXPERIMENTS[data_set], task)
    EXPERIMENTS[f"specificity_prefix_{name}"] = experiment(f"specificity_prefix_{name}", codes, task)
    if task.texts_of_trials:
        EXPERIMENTS[f"specificity_trials_{name}"] = experiment(f"specificity_trials_{name}", trials, task, True)
for name in ("hotels", "imdb"):
    EXPERIMENTS[f"sampled_{name}"] = experiment(f"sampled_{name}", tacl.EXPERIMENTS[name], BY_SAMPLING)
EXPERIMENTS["sampled_trials_hotels"] = experiment("sampled_trials_hotels", trials, BY_SAMPLING, True)

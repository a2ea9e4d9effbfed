"""Models that differ from those of another experiment in the options of rows.toml.

switches: FactorCells with one part changed, in short trainings; classification also with sampled tokens
restraint: regularisation of the context of hotels
ranks: FactorCells of rank 4 and 12, with the number of training texts
trials: 14 models of each class with random sizes, one seed each (figures 1, 3 and 5 of the TACL paper)
family: every cell, adaptation, bias and loss on news
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import corpora
import tacl
import thesis_sixteen
from corpora import Tables
from factorcell.evaluation.classification import classify
from factorcell.io import files
from factorcell.runs.run import Run
from measures import SAMPLES, Cities, measure_classification
from study import ROWS, Experiment, Measurement, Options
from tacl_baselines import classifiers, ngram_row, per_value

TRIALS = ("agnews", "dbpedia", "hotels", "imdb", "languages", "places")
MANY_CONTEXTS = ("hotels", "places")  # data sets with too many contexts for a bias of each value


def tacl_variation(kind: str, name: str, measure: Callable[[Run, Tables], Measurement]) -> Experiment:
    return replace(tacl.EXPERIMENTS[name], name=f"{kind}_{name}", rows=ROWS[f"{kind}_{name}"], measure=measure)


def measure_with_samples(run: Run, tables: Tables, name: str) -> Measurement:
    """Measure a run of `switches`; category targets also with samples of the vocabulary."""
    measured, target = tacl.measure_accuracy(run, tables, name), tacl.SETS[name].target
    if isinstance(target, Cities):
        return measured
    row = {}
    for proposal in ("rank", "unigram"):
        classification = classify(
            run, tables["judged"], target, priors="uniform", unknown="group", samples=SAMPLES, proposal=proposal
        )
        row[f"accuracy_{proposal}"] = float(classification.metrics()["accuracy"])
    return measured | Measurement(row)


def measure_with_sizes(run: Run, tables: Tables, measure: Callable[[Run, Tables], Measurement]) -> Measurement:
    values = max(len(variable.values) for variable in run.schema.categories)  # with the unknown value
    trained = files.read_json(run.folder / "training.json")
    sizes = {"trained_targets": trained["targets"], "values": values - 1, "texts_per_value": trained["texts"] / values}
    return measure(run, tables) | Measurement(sizes)


def measure_trial(run: Run, tables: Tables, name: str) -> Measurement:
    """Measure a model of random sizes without calibration; on words with samples, as in the paper."""
    samples = SAMPLES if tacl.SETS[name].unit == "word" else 0
    return tacl.measure_accuracy(
        run, {part: table for part, table in tables.items() if part != "calibration"}, name, samples
    )


def random_models(name: str) -> dict[str, Options]:
    shared = {"variable_size": 8} if name == "hotels" else {}
    result: dict[str, Options] = {}
    for number, sizes in ROWS["tacl_trials"].items():
        model_options = {**shared, **sizes["model"], **({"output_bias": ["low_rank"]} if name in MANY_CONTEXTS else {})}
        for model in tacl.MODELS[1:]:
            result[f"{model} {number}"] = {**sizes, "model": {**tacl.options(model)["model"], **model_options}}
    return result


def news(data: Path, folder: Path, share: float) -> Tables:
    parts = corpora.parts(data, folder, "agnews_words", share)
    return {**parts, "judged": parts["test"]}


EXPERIMENTS = {
    **{
        f"switches_{name}": tacl_variation("switches", name, partial(measure_with_samples, name=name))
        for name in tacl.SWITCHED
    },
    **{
        f"restraint_{name}": tacl_variation("restraint", name, partial(tacl.measure_accuracy, name=name))
        for name in ("hotels", "hotels13")
    },
}
for name in ("hotels", "hotels13", "dbpedia", "languages"):
    EXPERIMENTS[f"ranks_{name}"] = tacl_variation(
        "ranks", name, partial(measure_with_sizes, measure=partial(tacl.measure_accuracy, name=name))
    )
for name in ("scotus", "reddit_titles"):
    base = thesis_sixteen.EXPERIMENTS[name]
    key, measure_ranks = f"ranks_{name}", partial(measure_with_sizes, measure=base.measure)
    EXPERIMENTS[key] = replace(base, name=key, rows=ROWS[key], baselines={}, measure=measure_ranks)
EXPERIMENTS["family"] = Experiment(
    "family",
    "agnews_words.toml",
    ROWS["family"],
    news,
    lambda run, tables: measure_classification(run, tables, "section"),
    baselines={**per_value("section"), **ngram_row(), **classifiers("section", "word")},
)
for name in TRIALS:
    EXPERIMENTS[f"tacl_trials_{name}"] = replace(
        tacl.EXPERIMENTS[name],
        name=f"tacl_trials_{name}",
        rows=random_models(name),
        measure=partial(measure_trial, name=name),
        seeds=(0,),
    )

"""Baselines for tables 3 and 4 of the TACL paper, on the same texts and the same vocabulary.

- prefix: a model of the same recipe that reads its context as control codes (Keskar et al. 2019)
- separate: an unadapted model of the same recipe for each target value, and one of all texts for other values
- mixture: the separate models mixed with the one of all texts, with weights fitted to dev for each value
- ngram: modified Kneser-Ney smoothing, of the best order on dev
- bayes, linear, fasttext: classifiers that read only the texts, no other column

The target value of tweets is the nearest city.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import corpora
import study
import tacl
from classifiers import FastText, NaiveBayes
from corpora import Tables
from factorcell.config import Config
from factorcell.data.columns.schema import Variable
from factorcell.data.columns.values import category_name
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.evaluation import linear_classifier
from factorcell.evaluation.bayes_rule import Classification, apply_bayes_rule, apply_temperature, text_accuracies
from factorcell.evaluation.classification import great_circle_distances
from factorcell.evaluation.perplexity import evaluate_corpus
from factorcell.evaluation.text_figures import sum_per_text, texts_digest
from factorcell.ngram.mixture import FILE as MIXTURE
from factorcell.ngram.ngram import NGram, count_ngrams
from factorcell.nn.scoring import Scorer
from factorcell.training.mixture import MixedModels, mix
from measures import MAX_DISTANCE, Cities, calibrated_figures, frequent_values
from separate import SHARED, run_folder, separate, separate_models
from study import Baseline, Experiment, Measurement
from tacl import SETS

CITY = "city"  # the column of the nearest city
NGRAM = "ngram"
Target = str | Cities  # a column, or cities of which the nearest is inferred
ORDERS = range(3, 13)  # orders of n-gram models to try
CLASSIFIER_ORDER = {"word": 2, "character": 5}  # of the n-grams of classifiers, by kind of token


def target_column(target: Target) -> str:
    return CITY if isinstance(target, Cities) else target


@dataclass(frozen=True)
class TargetValues:
    """The values of the column `target` that are candidates, and the words that identify their figures."""

    target: str
    names: Sequence[str]
    key: Sequence[str]

    @classmethod
    def from_tables(cls, target: Target, tables: Tables, known: Sequence[str]) -> "TargetValues":
        if isinstance(target, Cities):
            names = [city for city in target.cities() if city in known]
            return cls(CITY, names, names)
        names = frequent_values(tables["judged"], target, known)
        return cls(target, names, (target, *names))

    def restrict(self, classification: Classification, corpus: Corpus) -> Classification:
        """Return a classification of the texts of `corpus` with these values as the only candidates."""
        places = [classification.names.index(name) for name in self.names]
        truth = np.array([places.index(place) if place in places else -1 for place in classification.truth.tolist()])
        posterior = apply_temperature(classification.log_posterior[:, places], 1.0)
        key = texts_digest(corpus, *self.key)
        return replace(
            classification,
            names=tuple(self.names),
            log_posterior=posterior,
            truth=truth,
            key=key,
        )

    def classify(self, scorer: Scorer, table: Path, candidates: Sequence[Mapping[str, Any]] = ()) -> Classification:
        """Apply Bayes' rule with a uniform prior to the nats of texts in each context of `candidates` or each value."""
        corpus = scorer.prepare(table, unknown="group")
        contexts = candidates or [{self.target: name} for name in self.names]
        likelihoods = [-sum_per_text(scorer.nats(with_context(corpus, context)), corpus) for context in contexts]
        values = corpora.read(table)[self.target].to_pylist()
        truth = [None if value is None else category_name(value) for value in values]
        return self.restrict(apply_bayes_rule(self.names, np.stack(likelihoods, axis=1), truth), corpus)


def measure_accuracy(classification: Classification) -> Measurement:
    metrics = classification.metrics()
    row = {"candidates": len(classification.names), "judged": metrics["texts"]}
    row |= {name: metrics[name] for name in ("accuracy", "macro_f1")}
    return Measurement(row, {"accuracy": text_accuracies(classification)})


def with_context(corpus: Corpus, context: Mapping[str, Any]) -> Corpus:
    """Return the texts with the values of `context` in all variables of that name."""
    categories, numbers = corpus.categories.copy(), corpus.numbers.copy()
    for place, variable in enumerate(corpus.schema.categories):
        if (value := context.get(variable.name)) is not None:
            categories[:, place] = variable.values.index(value) if value in variable.values else 0
    for place, variable in enumerate(corpus.schema.numbers):
        if (value := context.get(variable.name)) is not None:
            numbers[:, place] = value
    return replace(corpus, categories=categories, numbers=numbers)


def tables(name: str, data: Path, folder: Path, share: float) -> Tables:
    parts = tacl.tables(SETS[name], data, folder, share)
    target = SETS[name].target
    if not isinstance(target, Cities):
        return parts
    labelled_paths = {part: path.with_name(f"{path.stem}-{CITY}.parquet") for part, path in parts.items()}
    return parts | {
        f"labelled_{at}": corpora.create_once(path, partial(with_city, parts[at], target))
        for at, path in labelled_paths.items()
    }


def with_city(path: Path, cities: Cities) -> pa.Table:
    """Add the column of the nearest city, null where all cities are too far."""
    table, cities_by_name = corpora.read(path), cities.cities()
    # The precision is that of the model, so that the same texts are near a city.
    coordinates = np.stack([table[name].to_numpy().astype(np.float32) for name in ("lat", "lon")], axis=1)
    distances = great_circle_distances(
        coordinates.astype(np.float64), np.array([[city["lat"], city["lon"]] for city in cities_by_name.values()])
    )
    nearest = [
        list(cities_by_name)[place] if distances[row, place] <= MAX_DISTANCE else None
        for row, place in enumerate(distances.argmin(1))
    ]
    return table.append_column(CITY, pa.array(nearest, pa.string()))


def labelled_table(tables: Tables, part: str) -> Path:
    return tables[f"labelled_{part}" if f"labelled_{part}" in tables else part]


# ---- language models ----


def ngram(config: Config, tables: Tables, folder: Path) -> Measurement:
    best = best_ngram(config, tables, folder)
    return Measurement({"order": len(best.orders)}) | measure_scorer(best, tables)


def tokenizer_of(config: Config, tables: Tables) -> Tokenizer:
    """Return the tokenizer of the models of these texts, which does not depend on their context."""
    return prepare(tables["train"], config.with_options(context=())).tokenizer


def best_ngram(config: Config, tables: Tables, folder: Path, tokenizer: Tokenizer | None = None) -> NGram:
    """Return the n-gram model of the best order on dev, with the tokenizer of the models."""
    config = config.with_options(context=())
    corpus = prepare(tables["train"], config, tokenizer=tokenizer)
    dev = prepare(tables["dev"], config, tokenizer=corpus.tokenizer)
    best, best_cost = None, math.inf
    for order in ORDERS:
        model = NGram(folder, config, corpus.tokenizer, count_ngrams(corpus, order))
        cost = float(model.nats(dev).mean())
        if best is not None and cost >= best_cost:
            return best
        best, best_cost = model, cost
    assert best is not None
    return best


def measure_scorer(scorer: Scorer, tables: Tables) -> Measurement:
    dev = scorer.prepare(labelled_table(tables, "dev"), unknown="group")
    return Measurement({"dev": evaluate_corpus(scorer, dev).row}) | study.measure_perplexity(
        scorer, labelled_table(tables, "test")
    )


def measure_separate(config: Config, tables: Tables, folder: Path, target: Target) -> Measurement:
    """Measure a model for each value; unfinished ones are trained to their end."""
    runs = train_separate(config, tables, folder, target)
    return measure_models(runs, runs, tables, target)


def measure_mixture(config: Config, tables: Tables, folder: Path, target: Target) -> Measurement:
    """Measure the models of the row `separate` with the same seed, mixed with the model of all texts."""
    runs = train_separate(config, tables, folder.parent.with_name("separate") / folder.name, target)
    if not (folder / MIXTURE).exists():
        folders = [runs.folder, run_folder(runs.folder, SHARED)]
        mix(folders, labelled_table(tables, "dev"), folder, by=target_column(target), unknown="group")
    return measure_models(runs, MixedModels.open(folder), tables, target)


def train_separate(config: Config, tables: Tables, folder: Path, target: Target) -> MixedModels:
    train, dev = (labelled_table(tables, part) for part in ("train", "dev"))
    return separate(train, dev, config, folder, by=target_column(target), resume=True)


def measure_models(runs: MixedModels, scorer: Scorer, tables: Tables, target: Target) -> Measurement:
    """Measure a scorer made of models for single values, with the sums of their parameters and minutes."""
    trained = separate_models(runs)
    parameters, minutes = (
        sum(run.model.parameter_count() for run in trained),
        sum(run.training_minutes() for run in trained),
    )
    row = Measurement({"parameters": parameters, "minutes": minutes})
    return (
        row | measure_scorer(scorer, tables) | classify_by_bayes_rule(scorer, runs.schema.categories[0], tables, target)
    )


def classify_by_bayes_rule(scorer: Scorer, variable: Variable, tables: Tables, target: Target) -> Measurement:
    """Measure the classification by a scorer that knows a variable; empty if no texts are judged."""
    if "judged" not in tables:
        return Measurement({})
    values = TargetValues.from_tables(target, tables, variable.values[1:])
    if not values.names:  # in a trial all values may be rare
        return Measurement({})
    classification = values.classify(scorer, labelled_table(tables, "judged"))
    if "calibration" not in tables:
        return measure_accuracy(classification)
    return measure_accuracy(classification) | calibrated_figures(
        classification, values.classify(scorer, labelled_table(tables, "calibration")), variable.counts_by_value
    )


# ---- classifiers ----


def classifier(kind: str, corpus: Corpus, order: int, seed: int) -> Callable[[Corpus], Classification]:
    """Return a function that classifies texts, trained on a corpus; fastText reads n-grams up to `order`."""
    if kind == "bayes":
        return NaiveBayes(corpus)
    if kind == "linear":
        return partial(linear_classifier.classify_with_linear_baseline, corpus)
    return FastText(corpus, order=order, seed=seed)


def labelled_texts(config: Config, tables: Tables, column: str, part: str = "judged") -> tuple[Corpus, Corpus]:
    """Return texts to learn a column from and those of a part, tokenized as the models read them."""
    paths = labelled_table(tables, "train"), labelled_table(tables, part)
    return linear_classifier.read_train_and_test(*paths, column, config, tokenizer=tokenizer_of(config, tables))


def measure_classifier(
    config: Config, tables: Tables, folder: Path, target: Target, order: int, kind: str
) -> Measurement:
    """Measure a classifier, calibrated on the `calibration` texts; like the models, naive Bayes has a uniform prior."""
    column = target_column(target)
    corpus, test = labelled_texts(config, tables, column)
    variable = corpus.schema.categories[0]
    values, classify = (
        TargetValues.from_tables(target, tables, variable.values[1:]),
        classifier(kind, corpus, order, config.training.seed),
    )
    classification = values.restrict(classify(test), test)
    if "calibration" not in tables:
        return measure_accuracy(classification)
    _, dev = labelled_texts(config, tables, column, "calibration")
    priors = variable.counts_by_value if kind == "bayes" else None
    return measure_accuracy(classification) | calibrated_figures(
        classification, values.restrict(classify(dev), dev), priors
    )


def measure_if_frequent(
    config: Config, tables: Tables, folder: Path, target: Target, measure: Callable[..., Measurement]
) -> Measurement:
    """Measure a baseline of values; empty if fewer than two are frequent enough, as in a trial."""
    values = Counter(corpora.read(labelled_table(tables, "train"))[target_column(target)].drop_null().to_pylist())
    minimum = config.data.min_value_count(values.total())
    frequent = sum(texts >= minimum for texts in values.values())
    return measure(config, tables, folder, target) if frequent > 1 else Measurement({})


def value_baseline(target: Target, measure: Callable[..., Measurement], **options: Any) -> Baseline:
    return Baseline(partial(measure_if_frequent, target=target, measure=measure), **options)


def ngram_row(measure: Callable[[Config, Tables, Path], Measurement] = ngram) -> dict[str, Baseline]:
    return {NGRAM: Baseline(measure, seeded=False, is_deterministic=True)}


def classifiers(
    target: Target, unit: str, measure: Callable[..., Measurement] = measure_classifier
) -> dict[str, Baseline]:
    """Return the rows of classifiers, which read n-grams of `unit` (word or character)."""
    measure_kind = partial(measure, order=CLASSIFIER_ORDER[unit])
    return {
        "bayes": value_baseline(target, partial(measure_kind, kind="bayes"), seeded=False, is_deterministic=True),
        "linear": value_baseline(target, partial(measure_kind, kind="linear")),
        "fasttext": value_baseline(target, partial(measure_kind, kind="fasttext")),
    }


def per_value(target: Target) -> dict[str, Baseline]:
    """Return the rows of a model for each value, and of their mixture with a model of all texts."""
    return {
        "separate": value_baseline(target, measure_separate),
        "mixture": value_baseline(target, measure_mixture, after="separate"),
    }


def experiment(name: str) -> Experiment:
    models, target = tacl.EXPERIMENTS[name], SETS[name].target
    rows_of_baselines = {**per_value(target), **ngram_row(), **classifiers(target, SETS[name].unit)}
    rows = {"prefix": tacl.options("prefix"), **dict.fromkeys(rows_of_baselines, tacl.options("unadapted"))}
    measure_targets, texts = partial(tacl.measure_accuracy, name=name), partial(tables, name)
    return replace(
        models,
        name=f"tacl_baselines_{name}",
        rows=rows,
        tables=texts,
        measure=measure_targets,
        baselines=rows_of_baselines,
    )


EXPERIMENTS = {name: experiment(name) for name in SETS}

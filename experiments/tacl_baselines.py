"""What the models of tables 3 and 4 of the TACL paper are held against, on the same texts and the same vocabulary.

- prefix: a model of the same recipe that reads its context as control codes (Keskar et al. 2019)
- separate: an unadapted model for each value that is told, by the same recipe, and one of all texts for other values
- mixture: those and the one of all texts, with weights for each value that suit dev
- ngram: modified Kneser-Ney smoothing, of the order that suits dev
- bayes, linear, fasttext: classifiers of the texts alone, which know no other column

Tweets are told, and have separate models, by the nearest city.
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
from corpora import Tables
from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.data.schema import Variable
from factorcell.data.tokenizer import Tokenizer
from factorcell.data.values import category_name
from factorcell.evaluation import baselines
from factorcell.evaluation.bayes_rule import Classification, apply_bayes_rule, apply_temperature, text_accuracies
from factorcell.evaluation.classification import great_circle_distances
from factorcell.evaluation.ngram import NGram, count_ngrams
from factorcell.evaluation.perplexity import summary_row
from factorcell.evaluation.text_figures import sum_per_text, texts_digest
from factorcell.model.scoring import Scorer
from factorcell.training import mixture
from factorcell.training.mixture import Mixture
from factorcell.training.per_value import SHARED, SeparateRuns, separate
from measures import WITHIN, Cities, as_classifier, frequent_values
from study import Baseline, Experiment, Measured
from tacl import SETS

CITY = "city"  # the column of the nearest one
NGRAM = "ngram"
Target = str | Cities  # a column, or the cities of which the nearest is told
ORDERS = range(3, 13)  # of n-gram models
ORDER = {"word": 2, "character": 5}  # of the n-grams that classifiers see, by the unit of a set


def column_of(target: Target) -> str:
    """The column that is told."""
    return CITY if isinstance(target, Cities) else target


@dataclass(frozen=True)
class TargetValues:
    """Which values of a column `target` are told apart, and the words by which their figures are known."""

    target: str
    names: Sequence[str]
    key: Sequence[str]

    @classmethod
    def of(cls, target: Target, tables: Tables, known: Sequence[str]) -> "TargetValues":
        """Those that the models tell apart too, if they are `known`."""
        if isinstance(target, Cities):
            names = [city for city in target.cities() if city in known]
            return cls(CITY, names, names)
        names = frequent_values(tables["judged"], target, known)
        return cls(target, names, (target, *names))

    def among(self, classification: Classification, corpus: Corpus) -> Classification:
        """What was `found` of the texts of `corpus`, with the names as the only ones there are."""
        places = [classification.names.index(name) for name in self.names]
        truth = np.array([places.index(place) if place in places else -1 for place in classification.truth.tolist()])
        score, posterior = (
            classification.detection_score[:, places],
            apply_temperature(classification.log_posterior[:, places], 1.0),
        )
        key = texts_digest(corpus, *self.key)
        return replace(
            classification,
            names=tuple(self.names),
            detection_score=score,
            log_posterior=posterior,
            truth=truth,
            key=key,
        )

    def by_rule(self, scorer: Scorer, table: Path, candidates: Sequence[Mapping[str, Any]] = ()) -> Classification:
        """Bayes' rule with a uniform prior over what texts cost with each of the `candidates`; else with each name."""
        corpus = scorer.prepare(table, unknown="group")
        contexts = candidates or [{self.target: name} for name in self.names]
        likelihoods = [-sum_per_text(scorer.nats(with_context(corpus, context)), corpus) for context in contexts]
        values = corpora.read(table)[self.target].to_pylist()
        truth = [None if value is None else category_name(value) for value in values]
        return self.among(apply_bayes_rule(self.names, np.stack(likelihoods, axis=1), corpus.lengths, truth), corpus)


def accuracy_of(classification: Classification) -> Measured:
    """How many of the texts get the right value."""
    metrics = classification.metrics()
    row = {"candidates": len(classification.names), "judged": metrics["texts"]}
    row |= {name: metrics[name] for name in ("accuracy", "macro_f1")}
    return Measured(row, {"accuracy": text_accuracies(classification)})


def with_context(corpus: Corpus, context: Mapping[str, Any]) -> Corpus:
    """The texts as if all had some values of their variables, wherever these stand."""
    categories, numbers = corpus.categories.copy(), corpus.numbers.copy()
    for place, variable in enumerate(corpus.schema.categories):
        if (value := context.get(variable.name)) is not None:
            categories[:, place] = variable.values.index(value) if value in variable.values else 0
    for place, variable in enumerate(corpus.schema.numbers):
        if (value := context.get(variable.name)) is not None:
            numbers[:, place] = value
    return replace(corpus, categories=categories, numbers=numbers)


def tables(name: str, data: Path, folder: Path, share: float) -> Tables:
    """The texts of a set, and where the nearest city is told the same with it."""
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
    """Texts with the nearest city, none where all are too far."""
    table, every = corpora.read(path), cities.cities()
    # as exact as a model has them, so that the same texts lie within
    coordinates = np.stack([table[name].to_numpy().astype(np.float32) for name in ("lat", "lon")], axis=1)
    away = great_circle_distances(
        coordinates.astype(np.float64), np.array([[city["lat"], city["lon"]] for city in every.values()])
    )
    near = [list(every)[place] if away[row, place] <= WITHIN else None for row, place in enumerate(away.argmin(1))]
    return table.append_column(CITY, pa.array(near, pa.string()))


def labelled(tables: Tables, part: str) -> Path:
    """The texts of a part with the column that is told."""
    return tables[f"labelled_{part}" if f"labelled_{part}" in tables else part]


# ---- language models ----


def ngram(config: Config, tables: Tables, folder: Path) -> Measured:
    """The n-gram model of the best order."""
    best = best_ngram(config, tables, folder)
    return Measured({"order": len(best.grams)}) | measure_scorer(best, tables)


def tokenizer_of(config: Config, tables: Tables) -> Tokenizer:
    """Return the tokenizer of the models of these texts, whatever their context."""
    return prepare(tables["train"], config.with_options(context=())).tokenizer


def best_ngram(config: Config, tables: Tables, folder: Path, tokenizer: Tokenizer | None = None) -> NGram:
    """The n-gram model by the tokenizer of the models, of the order after which dev gets no better."""
    config = config.with_options(context=())
    corpus = prepare(tables["train"], config, tokenizer=tokenizer)
    dev = prepare(tables["dev"], config, tokenizer=corpus.tokenizer)
    best, least = None, math.inf
    for order in ORDERS:
        model = NGram(folder, config, corpus.tokenizer, count_ngrams(corpus, order))
        cost = float(model.nats(dev).mean())
        if best is not None and cost >= least:
            return best
        best, least = model, cost
    assert best is not None
    return best


def measure_scorer(scorer: Scorer, tables: Tables) -> Measured:
    """Both perplexities of dev and of the test."""
    dev = scorer.prepare(labelled(tables, "dev"), unknown="group")
    return Measured({"dev": summary_row(scorer.nats(dev), dev)}) | study.measure_perplexity(
        scorer, labelled(tables, "test")
    )


def measure_separate(config: Config, tables: Tables, folder: Path, target: Target) -> Measured:
    """A model for each value; those that are not finished are trained to their end."""
    runs = train_separate(config, tables, folder, target)
    return measure_models(runs, runs, tables, target)


def measure_mixture(config: Config, tables: Tables, folder: Path, target: Target) -> Measured:
    """The models of the values, which the row `separate` of the same seed has, mixed with that of all texts."""
    runs = train_separate(config, tables, folder.parent.with_name("separate") / folder.name, target)
    if not (folder / mixture.INDEX_FILE).exists():
        dev = labelled(tables, "dev")
        mixture.mix([runs, runs.runs[SHARED]], dev, folder, by=column_of(target), unknown="group")
    return measure_models(runs, Mixture.open(folder), tables, target)


def train_separate(config: Config, tables: Tables, folder: Path, target: Target) -> SeparateRuns:
    """The models of the values."""
    train, dev = (labelled(tables, part) for part in ("train", "dev"))
    return separate(train, dev, config, folder, by=column_of(target), resume=True)


def measure_models(runs: SeparateRuns, scorer: Scorer, tables: Tables, target: Target) -> Measured:
    """What a scorer reaches that is made of models of the values, with all their parameters and minutes."""
    every = runs.runs.values()
    parameters, minutes = (
        sum(run.model.parameter_count() for run in every),
        sum(run.training_minutes() for run in every),
    )
    row = Measured({"parameters": parameters, "minutes": minutes})
    return (
        row | measure_scorer(scorer, tables) | classify_by_bayes_rule(scorer, runs.schema.categories[0], tables, target)
    )


def classify_by_bayes_rule(scorer: Scorer, variable: Variable, tables: Tables, target: Target) -> Measured:
    """What Bayes' rule tells by a scorer that knows the values of a variable; nothing where no texts are judged."""
    if "judged" not in tables:
        return Measured({})
    values = TargetValues.of(target, tables, variable.values[1:])
    if not values.names:  # in a trial all of them may be rare
        return Measured({})
    classification = values.by_rule(scorer, labelled(tables, "judged"))
    if "held" not in tables:
        return accuracy_of(classification)
    return accuracy_of(classification) | as_classifier(
        classification, values.by_rule(scorer, labelled(tables, "held")), variable.counts_by_value
    )


# ---- classifiers ----


def classifier(kind: str, corpus: Corpus, order: int, seed: int) -> Callable[[Corpus], Classification]:
    """A classifier of a `kind` that has learned from a corpus, by n-grams up to an order where it sees any."""
    if kind == "bayes":
        return lambda texts: baselines.naive_bayes(corpus, texts)[0]
    if kind == "linear":
        return baselines.LinearClassifier(corpus, order=order, seed=seed)
    return baselines.FastTextClassifier(corpus, order=order, seed=seed)


def labelled_texts(config: Config, tables: Tables, column: str, part: str = "judged") -> tuple[Corpus, Corpus]:
    """Texts to learn a column from, and those of a part, by the vocabulary of the models, who may have read more."""
    paths = labelled(tables, "train"), labelled(tables, part)
    return baselines.read_train_and_test(*paths, column, config, tokenizer=tokenizer_of(config, tables))


def measure_classifier(config: Config, tables: Tables, folder: Path, target: Target, order: int, kind: str) -> Measured:
    """A classifier that learned from the training texts; where texts are held, also at the temperature that suits them.

    Like the models, naive Bayes has a uniform prior first, and as a classifier that of training.
    """
    column = column_of(target)
    corpus, test = labelled_texts(config, tables, column)
    variable = corpus.schema.categories[0]
    values, tells = (
        TargetValues.of(target, tables, variable.values[1:]),
        classifier(kind, corpus, order, config.training.seed),
    )
    classification = values.among(tells(test), test)
    if "held" not in tables:
        return accuracy_of(classification)
    _, dev = labelled_texts(config, tables, column, "held")
    priors = variable.counts_by_value if kind == "bayes" else None
    return accuracy_of(classification) | as_classifier(classification, values.among(tells(dev), dev), priors)


def unless_rare(
    config: Config, tables: Tables, folder: Path, target: Target, measure: Callable[..., Measured]
) -> Measured:
    """What is measured of values; nothing where fewer than two are frequent enough, as in a trial."""
    values = Counter(corpora.read(labelled(tables, "train"))[column_of(target)].drop_null().to_pylist())
    frequent = sum(texts >= config.data.min_context_count for texts in values.values())
    return measure(config, tables, folder, target) if frequent > 1 else Measured({})


def value_baseline(target: Target, measure: Callable[..., Measured], **how: Any) -> Baseline:
    """A row that knows the values of a column."""
    return Baseline(partial(unless_rare, target=target, measure=measure), **how)


def ngram_row(measure: Callable[[Config, Tables, Path], Measured] = ngram) -> dict[str, Baseline]:
    """The row of n-grams, and what is measured of them."""
    return {NGRAM: Baseline(measure, seeded=False, is_deterministic=True)}


def classifiers(
    target: Target, unit: str, measure: Callable[..., Measured] = measure_classifier
) -> dict[str, Baseline]:
    """What tells a column by the texts of a `unit`, and what is measured of it."""
    of = partial(measure, order=ORDER[unit])
    return {
        "bayes": value_baseline(target, partial(of, kind="bayes"), seeded=False, is_deterministic=True),
        "linear": value_baseline(target, partial(of, kind="linear")),
        "fasttext": value_baseline(target, partial(of, kind="fasttext")),
    }


def per_value(target: Target) -> dict[str, Baseline]:
    """A model for each value of a column, and their mixture with one of all texts."""
    return {
        "separate": value_baseline(target, measure_separate),
        "mixture": value_baseline(target, measure_mixture, after="separate"),
    }


def experiment(name: str) -> Experiment:
    """All of them on a set."""
    of, target = tacl.EXPERIMENTS[name], SETS[name].target
    rows_of_baselines = {**per_value(target), **ngram_row(), **classifiers(target, SETS[name].unit)}
    rows = {"prefix": tacl.options("prefix"), **dict.fromkeys(rows_of_baselines, tacl.options("unadapted"))}
    measure_targets, texts = partial(tacl.measure_accuracy, name=name), partial(tables, name)
    return replace(
        of, name=f"tacl_baselines_{name}", rows=rows, tables=texts, measure=measure_targets, baselines=rows_of_baselines
    )


EXPERIMENTS = {name: experiment(name) for name in SETS}

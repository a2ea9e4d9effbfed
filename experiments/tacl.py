"""Tables 3 and 4 of the TACL paper: four models on eight data sets, in perplexity and accuracy.

The four models of a data set share the recipe tacl_SET.toml. For GeoTwitter the accuracy is that of the nearest of six
cities. Few texts are near the six of the paper (printed_cities.csv, figures `accuracy_printed_cities`), so `accuracy`
is that of another six (us_cities.csv, world_cities.csv). Rows of hotels have figure 6 as well (hotels.py).
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import corpora
import hotels
from corpora import Tables
from factorcell.config import PAPER_MODELS, Config
from factorcell.model.run import Run
from measures import Cities, measure_classification, nearest_city
from study import Experiment, Measured, Options


@dataclass(frozen=True)
class Set:
    """A data set: the folder of its texts, its target column or cities, its unit, and how many texts are judged.

    The FactorCell has a `rank` of its own where that of the recipe was worse on the development part.
    """

    source: str
    target: str | Cities
    unit: str = "word"
    judged: int = sys.maxsize
    rank: int | None = None


MODELS = PAPER_MODELS
SWITCHED = ("agnews", "places", "imdb", "tweets")  # data sets of variations.py
CALIBRATION_TEXTS = 2000  # texts of the development part that a temperature is fitted to
SETS = {
    "agnews": Set("agnews_words", "section"),
    "dbpedia": Set("dbpedia14", "category"),
    "hotels": Set("hotels", "rating"),
    "hotels13": Set("hotels13", "rating", rank=4),
    "imdb": Set("imdb", "rating", judged=1000),  # eight ratings of long texts
    "languages": Set("commonvoice9", "language", "character"),
    "tweets": Set("geotweets", Cities("us_cities.csv"), "character"),
    "places": Set("placenames", Cities("world_cities.csv"), "character"),
}


def options(model: str) -> Options:
    """Return what a model of the paper adapts."""
    model_config = Config().with_model(model).model
    return {"model": {"adapt": list(model_config.adapt), "output_bias": list(model_config.output_bias)}}


def tables(data_set: Set, data: Path, folder: Path, share: float) -> Tables:
    """Return the texts of a data set, those that are judged, and those that a temperature is fitted to (`held`)."""
    parts = corpora.parts(data, folder, data_set.source, share)
    judged = parts["test"] if data_set.judged == sys.maxsize else corpora.first(parts["test"], data_set.judged)
    return {**parts, "judged": judged, "held": corpora.first(parts["dev"], min(data_set.judged, CALIBRATION_TEXTS))}


def measure_accuracy(run: Run, tables: Tables, name: str, samples: int = 0) -> Measured:
    """Measure the accuracy of a run; of categories by all of its vocabulary, or by `samples` of it."""
    target = SETS[name].target
    if isinstance(target, Cities):
        return nearest_city(run, tables, target)
    return measure_classification(run, tables, target, samples)


def measure(run: Run, tables: Tables, name: str) -> Measured:
    """Measure the accuracy, and of hotels their embeddings."""
    return measure_accuracy(run, tables, name) | (hotels.known(run, tables) if name == "hotels" else Measured({}))


def experiment(name: str) -> Experiment:
    """Return the four models on a data set."""
    rows = {model: options(model) for model in MODELS}
    if SETS[name].rank is not None:
        rows["factorcell"] = {"model": {**rows["factorcell"]["model"], "rank": SETS[name].rank}}
    texts = partial(tables, SETS[name])
    return Experiment(f"tacl_{name}", f"tacl_{name}.toml", rows, texts, partial(measure, name=name))


EXPERIMENTS = {name: experiment(name) for name in SETS}

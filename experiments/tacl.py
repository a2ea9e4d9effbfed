"""Tables 3 and 4 of the TACL paper: four models on eight data sets, in perplexity and accuracy.

The four models of a data set share the recipe tacl_SET.toml. For GeoTwitter the target is the nearest of six
cities. Few texts are near the six cities of the paper (printed_cities.csv, figures `accuracy_printed_cities`), so
`accuracy` is that of six other cities (us_cities.csv, world_cities.csv). Rows of hotels also have figure 6 (hotels.py).
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import corpora
import hotels
from corpora import Tables
from factorcell.config import PAPER_MODELS, Config
from factorcell.runs.run import Run
from measures import Cities, measure_classification, measure_nearest_city
from study import Experiment, Measurement, Options


@dataclass(frozen=True)
class DataSet:
    """A data set; `rank` is that of its FactorCell if the rank of the recipe was worse on the development part."""

    source: str
    target: str | Cities
    unit: str = "word"
    judged_texts: int = sys.maxsize
    rank: int | None = None


MODELS = PAPER_MODELS
SWITCHED = ("agnews", "places", "imdb", "tweets")  # data sets of the experiments `switches` in variations.py
CALIBRATION_TEXTS = 2000  # development texts that a temperature is fitted to
SETS = {
    "agnews": DataSet("agnews_words", "section"),
    "dbpedia": DataSet("dbpedia14", "category"),
    "hotels": DataSet("hotels", "rating"),
    "hotels13": DataSet("hotels13", "rating", rank=4),
    "imdb": DataSet("imdb", "rating", judged_texts=1000),  # eight ratings of long texts
    "languages": DataSet("commonvoice9", "language", "character"),
    "tweets": DataSet("geotweets", Cities("us_cities.csv"), "character"),
    "places": DataSet("placenames", Cities("world_cities.csv"), "character"),
}


def options(model: str) -> Options:
    model_config = Config().with_options(model=model).model
    return {"model": {"adapt": list(model_config.adapt), "output_bias": list(model_config.output_bias)}}


def tables(data_set: DataSet, data: Path, folder: Path, share: float) -> Tables:
    """Return the texts of a data set, the judged ones, and those that a temperature is fitted to (`calibration`)."""
    parts = corpora.parts(data, folder, data_set.source, share)
    judged = (
        parts["test"] if data_set.judged_texts == sys.maxsize else corpora.first(parts["test"], data_set.judged_texts)
    )
    return {
        **parts,
        "judged": judged,
        "calibration": corpora.first(parts["dev"], min(data_set.judged_texts, CALIBRATION_TEXTS)),
    }


def measure_accuracy(run: Run, tables: Tables, name: str, samples: int = 0) -> Measurement:
    target = SETS[name].target
    if isinstance(target, Cities):
        return measure_nearest_city(run, tables, target)
    return measure_classification(run, tables, target, samples)


def measure(run: Run, tables: Tables, name: str) -> Measurement:
    return measure_accuracy(run, tables, name) | (
        hotels.measure_embeddings(run, tables) if name == "hotels" else Measurement({})
    )


def experiment(name: str) -> Experiment:
    rows = {model: options(model) for model in MODELS}
    if SETS[name].rank is not None:
        rows["factorcell"] = {"model": {**rows["factorcell"]["model"], "rank": SETS[name].rank}}
    texts = partial(tables, SETS[name])
    return Experiment(f"tacl_{name}", f"tacl_{name}.toml", rows, texts, partial(measure, name=name))


EXPERIMENTS = {name: experiment(name) for name in SETS}

"""Tables 3 and 4 of the TACL paper: four models on eight sets, in perplexity and in telling contexts apart.

    python experiments/tacl.py agnews --data DATA --out OUT

Each set stands for one of the paper's (experiments/README.md); its four models share a recipe, tacl_SET.toml. Of
hotels the rows have figures 2 and 6 and table 5 as well (hotels.py).

GeoTwitter's accuracy is that of the nearest of six cities. Few of our texts are near the paper's (printed_cities.csv),
so `accuracy` is that of another six (us_cities.csv, world_cities.csv), `accuracy_printed_cities` that of the paper's,
each with its count of texts (`judged`). README.md says how the others were chosen.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import corpora
import hotels
import study
from corpora import Tables
from factorcell.config import PAPER_MODELS, Config
from factorcell.model.run import Run
from measures import Cities, nearest_city, told_apart
from study import Experiment, Measured, Options


@dataclass(frozen=True)
class Set:
    """A data set, what the paper calls the one that it stands for, and which column, or nearest city, is told.

    Its perplexities are per `unit`; so many texts of the test are `judged`, all if not said. The FactorCell has a rank
    of its own where that of the recipe suited dev less well.
    """

    source: str
    printed: str
    target: str | Cities
    unit: str = "word"
    judged: int = sys.maxsize
    rank: int | None = None


HELD = 2000  # texts of dev that a temperature suits
SETS = {
    "agnews": Set("agnews_words", "AgNews", "section"),
    "dbpedia": Set("dbpedia14", "DBPedia", "category"),
    "hotels": Set("hotels", "TripAdvisor", "rating"),
    "hotels13": Set("hotels13", "TripAdvisor", "rating", rank=4),
    "imdb": Set("imdb", "Yelp", "rating", judged=1000),  # eight ratings of long texts
    "languages": Set("commonvoice9", "EuroTwitter", "language", "character"),
    "tweets": Set("geotweets", "GeoTwitter", Cities("us_cities.csv"), "character"),
    "places": Set("placenames", "GeoTwitter", Cities("world_cities.csv"), "character"),
}


def options(model: str) -> Options:
    """What a model of the paper adapts."""
    made = Config().with_model(model).model
    return {"model": {"adapt": list(made.adapt), "output_bias": list(made.output_bias)}}


def tables(one: Set, data: Path, folder: Path, share: float) -> Tables:
    """The texts of a set; the first ones of the test are judged, and a temperature suits those of dev (`held`)."""
    given = corpora.parts(data, folder, one.source, share)
    judged = given["test"] if one.judged == sys.maxsize else corpora.first(given["test"], one.judged)
    return {**given, "judged": judged, "held": corpora.first(given["dev"], min(one.judged, HELD))}


def told(run: Run, tables: Tables, name: str, samples: int = 0) -> Measured:
    """Which contexts a run of a set tells apart; categories by all of its vocabulary, or by `samples` of it."""
    target = SETS[name].target
    if isinstance(target, Cities):
        return nearest_city(run, tables, target)
    return told_apart(run, tables, target, samples)


def measure(run: Run, tables: Tables, name: str) -> Measured:
    """The same, and of hotels what the run knows of them."""
    return told(run, tables, name) | (hotels.known(run, tables) if name == "hotels" else Measured({}))


def experiment(name: str) -> Experiment:
    """The four models on a set."""
    rows = {model: options(model) for model in PAPER_MODELS}
    if SETS[name].rank is not None:
        rows["factorcell"] = {"model": {**rows["factorcell"]["model"], "rank": SETS[name].rank}}
    texts = partial(tables, SETS[name])
    return Experiment(f"tacl_{name}", f"tacl_{name}.toml", rows, texts, partial(measure, name=name))


EXPERIMENTS = {name: experiment(name) for name in SETS}
main = study.script(__file__, __doc__, EXPERIMENTS)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Tables 3 and 4 of the TACL paper: four models on seven sets, in perplexity and in telling contexts apart.

    python experiments/tacl.py agnews --data DATA --out OUT

Each set stands for one of the paper's (experiments/README.md); its four models share a recipe, tacl_SET.toml.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import corpora
import study
from corpora import Tables
from factorcell.config import PAPER_MODELS, Config
from measures import nearest_city, told_apart
from study import Experiment, Options


@dataclass(frozen=True)
class Set:
    """A data set, what the paper calls the one that it stands for, and which column is told; None: the nearest city.

    Its perplexities are per `unit`.
    """

    source: str
    printed: str
    target: str | None
    unit: str = "word"


SETS = {
    "agnews": Set("agnews_words", "AgNews", "section"),
    "dbpedia": Set("dbpedia14", "DBPedia", "category"),
    "hotels": Set("hotels", "TripAdvisor", "rating"),
    "hotels13": Set("hotels13", "TripAdvisor", "rating"),
    "imdb": Set("imdb", "Yelp", "rating"),
    "languages": Set("commonvoice9", "EuroTwitter", "language", "character"),
    "tweets": Set("geotweets", "GeoTwitter", None, "character"),
}


def options(model: str) -> Options:
    """What a model of the paper adapts."""
    made = Config().with_model(model).model
    return {"model": {"adapt": list(made.adapt), "output_bias": list(made.output_bias)}}


def tables(source: str, data: Path, folder: Path, share: float) -> Tables:
    """The texts of a set; those of the test are judged."""
    given = corpora.parts(data, folder, source, share)
    return {**given, "judged": given["test"]}


def experiment(name: str) -> Experiment:
    """The four models on a set."""
    one = SETS[name]
    measure = nearest_city if one.target is None else partial(told_apart, target=one.target)
    rows = {model: options(model) for model in PAPER_MODELS}
    return Experiment(f"tacl_{name}", f"tacl_{name}.toml", rows, partial(tables, one.source), measure)


def main(argv: Sequence[str]) -> int:
    """Train what the arguments ask for."""
    parser = study.parser("Tables 3 and 4 of the TACL paper.")
    parser.add_argument("set", choices=SETS, help="data set")
    given = parser.parse_args(argv)
    return study.main(experiment(given.set), given, [__file__, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The data sets that can be built, with their columns, readers and splits."""

import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import agnews, commonvoice9, geotweets, hotels, hotels13, scotus, small
from .reading import Rows
from .repository import Repository

SOURCES = tomllib.loads((Path(__file__).parents[1] / "sources.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class DataSet:
    """A data set that `rows` reads from `sources` (owner/name -> commit); with `history`, rows keep their order."""

    contexts: Sequence[str]
    sources: Mapping[str, str]
    rows: Callable[[Sequence[Repository]], Rows]
    numbers: Sequence[str] = ()
    split: Mapping[str, Any] = field(default_factory=dict)
    history: bool = False


def news(sources: Sequence[Repository]) -> Rows:
    return agnews.words_of_articles(agnews.rows(sources))


LARGE = {"min_rows": 10_000}  # for dev and for the test
USERS = {"by": "user", "min_rows": 20_000, "rows_per_value": range(20, sys.maxsize)}  # 20 texts or more
TURNS = {**LARGE, "rows_per_value": range(1, 21)}  # frequent turns such as "Yes." are only trained on
HOTEL = ["hotel", "city", "rating"]
PLACE = ["lat", "lon"]
READERS: Mapping[str, tuple[Sequence[str], Callable[[Sequence[Repository]], Rows], Mapping[str, Any]]] = {
    "agnews": (["section"], agnews.rows, {}),
    "agnews_words": (["section"], news, {}),
    "commits": (["user", "project", "time"], small.commits, {"split": USERS, "history": True}),
    "commonvoice9": (["language"], commonvoice9.rows, {"split": LARGE}),
    "dbpedia14": (["category"], small.dbpedia14, {}),
    "geotweets": (PLACE, geotweets.rows, {"numbers": PLACE}),
    "hotels": (HOTEL, hotels.rows, {}),
    "hotels13": (HOTEL, hotels13.rows, {}),
    "imdb": (["rating", "movie"], small.imdb, {}),
    "reddit_titles": (["subreddit"], small.reddit_titles, {"split": LARGE}),
    "scotus": (["case", "speaker", "role", "term"], scotus.rows, {"split": TURNS}),
}
SETS = {
    name: DataSet(contexts, SOURCES[name.removesuffix("_words")], rows, **more)
    for name, (contexts, rows, more) in READERS.items()
}

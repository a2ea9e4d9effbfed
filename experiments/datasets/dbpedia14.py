"""Abstracts of DBPedia in 14 categories: a table `number,text` that came tokenised, and the categories' names."""

from collections.abc import Sequence

from .reading import Rows, table
from .repository import Repository

FOLDER = "data/dbpedia/"


def rows(sources: Sequence[Repository]) -> Rows:
    """An abstract and its category a line."""
    (source,) = sources
    names = source.text(f"{FOLDER}classes.txt").split()
    for fields in table(source.text(f"{FOLDER}train.csv")):
        known = len(fields) == 2 and fields[0].isdecimal() and int(fields[0]) < len(names)
        yield {"text": fields[1], "category": names[int(fields[0])]} if known else None

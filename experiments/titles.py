"""Titles of communities that are held out of training: those of dev are too few for a community each.

What stands in the training texts too, under another community, is not judged.
"""

import functools
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa

import corpora
from corpora import Tables

HELD = 60  # titles of each community
DEVELOPED = 10_000  # titles to choose the best weights by


def parted(train: pa.Table, test: pa.Table, chosen: Collection[str]) -> tuple[pa.Table, pa.Table]:
    """Training texts without the first `HELD` of each chosen community, and those with what the test has of it."""
    taken, held = Counter[str](), []
    for name in train["subreddit"].to_pylist():
        held.append(name in chosen and taken[name] < HELD)
        taken[name] += 1
    tested = [name in chosen for name in test["subreddit"].to_pylist()]
    rest = train.filter(pa.array([not one for one in held]))
    return rest, unread(pa.concat_tables([train.filter(pa.array(held)), test.filter(pa.array(tested))]), rest)


def unread(titles: pa.Table, train: pa.Table) -> pa.Table:
    """The titles that are not among the training texts."""
    there = set(train["text"].to_pylist())
    return titles.filter(pa.array([title not in there for title in titles["text"].to_pylist()], pa.bool_()))


def tables(data: Path, folder: Path, share: float, name: str, chosen: Callable[[pa.Table], Collection[str]]) -> Tables:
    """The titles to train on, those to develop on, those of the test, and those of communities that are `chosen`.

    The test has what dev has beyond its first titles. `name` is that of the choice, and of the files.
    """
    given = corpora.parts(data, folder, "reddit_titles", share)

    @functools.cache
    def parts() -> tuple[pa.Table, pa.Table]:
        train = corpora.read(given["train"])
        return parted(train, corpora.read(given["test"]), chosen(train))

    def tested() -> pa.Table:
        more = corpora.read(given["dev"]).slice(DEVELOPED)
        return unread(pa.concat_tables([corpora.read(given["test"]), more]), parts()[0])

    made = {
        "train": lambda: parts()[0],
        "judged": lambda: parts()[1],
        "dev": lambda: corpora.read(given["dev"]).slice(0, DEVELOPED),
        "test": tested,
    }
    return {part: corpora.kept(folder / f"{name}-{part}-of-{share:g}.parquet", make) for part, make in made.items()}

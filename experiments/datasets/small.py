"""Data sets with short readers: abstracts, film reviews, titles of posts, commit subjects."""

import html
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from corpora import text_hash
from factorcell.errors import UserError

from .reading import Row, Rows, clean, records, table
from .repository import Repository


def dbpedia14(sources: Sequence[Repository]) -> Rows:
    (source,) = sources
    names = source.text("data/dbpedia/classes.txt").split()
    for fields in table(source.text("data/dbpedia/train.csv")):
        known = len(fields) == 2 and fields[0].isdecimal() and int(fields[0]) < len(names)
        yield {"text": fields[1], "category": names[int(fields[0])]} if known else None


# ---- film reviews: one file per review, NUMBER_RATING.txt; line NUMBER of a list has the address of the film ----

REVIEWS = "aclImdb/train/"
NAME = re.compile(r"(\d+)_(\d+)\.txt")
FILM = re.compile(r"/title/(tt\d+)")
BEGINNING = re.compile(r"\S+(?:\s+\S+){0,199}")  # 200 words


def imdb(sources: Sequence[Repository]) -> Rows:
    (source,) = sources
    for label in ("neg", "pos"):
        films = FILM.findall(source.text(f"{REVIEWS}urls_{label}.txt"))
        for path in source.paths(f"{REVIEWS}{label}/", ".txt"):
            name = NAME.fullmatch(path.rpartition("/")[2])
            if name is None:
                continue
            number, rating = name.groups()
            if int(number) >= len(films):
                raise UserError(f"{source}: {path}: no film {number}; the list has {len(films)} films")
            beginning = BEGINNING.match(clean(source.text(path).replace("<br />", " ")))
            yield {"text": beginning.group(), "rating": rating, "movie": films[int(number)]} if beginning else None


MAX_TITLES = 500  # maximum number of titles per community


def reddit_titles(sources: Sequence[Repository]) -> Rows:
    """Yield the titles with the highest scores of each community, without repeated titles or adult content."""
    (source,) = sources
    for path in source.paths("data/", ".csv"):
        scored = list[tuple[int, str]]()
        for record in records(source.text(path), f"{source}: {path}", ["title", "score", "over_18"]):
            if record is None or not record["score"].lstrip("-").isdecimal():
                yield None
            elif record["over_18"] != "True":
                scored.append((int(record["score"]), clean(html.unescape(record["title"]))))
        best = dict[str, Row]()
        name = path.removeprefix("data/").removesuffix(".csv")
        for _, title in sorted(scored, key=lambda pair: -pair[0]):
            best.setdefault(title, {"text": title, "subreddit": name})
        yield from list(best.values())[:MAX_TITLES]


MAX_CHARACTERS = 100  # maximum length of a subject, in characters
ROBOT = re.compile(r"\[bot\]|\bbot$", re.IGNORECASE)
RELEASE = re.compile(r"((bump|prepar\w+|release|git|version|for|to|v)[ -]*)*\d+(\.\d+)+\S*", re.IGNORECASE)


def commits(sources: Sequence[Repository]) -> Rows:
    """Yield subjects of pseudonymous authors, sorted by author and time, without merges, bots and releases."""
    subjects = []
    for source in sources:
        for entry in source.log("%an%x1f%at%x1f%s"):
            parts = entry.split("\x1f")
            if len(parts) != 3 or not parts[1].isdecimal():
                yield None
                continue
            name, seconds, subject = parts[0].strip().lower(), int(parts[1]), clean(parts[2])
            if ROBOT.search(name) or RELEASE.fullmatch(subject) or not subject:
                continue
            author = f"{source.name}:{text_hash(f'{source.name} {name}'):016x}"
            subjects.append((author, seconds, source.name, subject[:MAX_CHARACTERS].strip()))
    for author, seconds, project, subject in sorted(subjects, key=lambda subject_row: subject_row[:2]):
        time = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield {"text": subject, "user": author, "project": project, "time": time}

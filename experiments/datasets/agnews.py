"""News in four sections: the articles of the official training file that seven copies contain.

No public copy has all of it. Copies differ in the separator of the title and the description of an article: two
columns, " . ", or a blank; articles without any separator are not used. If several copies have an article, the one
with the clearest separator is used.
"""

import html
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from factorcell.errors import UserError

from .reading import Row, Rows, read_from_zip, table
from .repository import Repository

SECTIONS = ("World", "Sports", "Business", "Sci/Tech")
COLUMNS, DOTTED, ANNOTATED, JOINED = range(4)  # separators of title and description in a copy, best first


class Copy(NamedTuple):
    """An article of a copy; the section is None if the copy has none."""

    text: str
    separator: int
    section: str | None


def rows(sources: Sequence[Repository]) -> Rows:
    """Yield training articles that are not in the test file and that have the same section in all copies."""
    official, *others = sources
    test = {letters(copy.text) for copy in columns(official.text("data/ag_news_csv/test.csv"), heading=False) if copy}
    best, sections = dict[str, Copy](), defaultdict[str, set[str]](set)
    for copy in copies(others):
        if copy is None:
            yield None
            continue
        name = letters(copy.text)
        if copy.section is not None:
            sections[name].add(copy.section)
        if name not in best or copy.separator < best[name].separator:
            best[name] = copy
    for name, copy in best.items():
        if len(sections[name]) == 1 and name not in test:
            yield {"text": copy.text, "section": next(iter(sections[name]))}


def letters(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def copies(sources: Sequence[Repository]) -> Iterator[Copy | None]:
    archived, formal, noisy, annotated, shuffled, split, small = sources
    yield from columns(read_from_zip(archived, "data/archive.zip", "train.csv"))
    yield from columns(formal.text("data/formal/validation.csv"))
    yield from dotted(noisy.text("dataset/samples10000valMed.csv"))
    yield from labels(annotated)
    yield from joined(shuffled.text("data/ag_news_train.csv"))
    for part in ("train", "dev", "test"):
        yield from joined(split.text(f"data/ag_news/{part}.csv"))
    names = {"world": "World", "sports": "Sports", "business": "Business", "sci_tech": "Sci/Tech"}
    for fields in table(small.text("data/agnews/train.csv")):
        known = len(fields) == 2 and fields[1] in names
        yield Copy(fields[0], JOINED, names[fields[1]]) if known else None


def section(number: str, first: int) -> str | None:
    place = int(float(number)) - first if re.fullmatch(r"\d+(\.0)?", number) else -1
    return SECTIONS[place] if 0 <= place < len(SECTIONS) else None


def columns(content: str, heading: bool = True) -> Iterator[Copy | None]:
    """Read lines of a section number (from 1), a title and a description."""
    for fields in list(table(content))[heading:]:
        name = section(fields[0], 1) if len(fields) == 3 else None
        yield Copy(f"{fields[1]} {fields[2]}", COLUMNS, name) if name else None


def dotted(content: str) -> Iterator[Copy | None]:
    """Read lines of an id, a section number (from 0) and a text; its title ends at " . " if that occurs once."""
    for fields in list(table(content))[1:]:
        name = section(fields[1], 0) if len(fields) > 2 else None
        separator = DOTTED if name and fields[2].count(" . ") == 1 else JOINED
        yield Copy(fields[2].replace(" . ", " ", 1), separator, name) if name else None


def joined(content: str) -> Iterator[Copy | None]:
    """Read lines of a text and a section number (from 0), with or without a header."""
    for fields in table(content):
        if fields[1:2] == ["label"]:
            continue
        name = section(fields[1], 0) if len(fields) > 1 else None
        yield Copy(fields[0], JOINED, name) if name else None


TITLE = re.compile("英文标题：(.*)\n英文标题描述：(.*?)\n样本索引：", re.DOTALL)


def labels(source: Repository) -> Iterator[Copy | None]:
    """Read titles and descriptions of a file of annotations, which has no sections."""
    path = "Annotated_Label/ag-news-sample4000-label1.json"
    try:
        items = json.loads(source.text(path))
    except ValueError:
        raise UserError(f"{source}: {path} is not JSON") from None
    for item in items:
        parts = TITLE.search(item.get("content", ""))
        yield Copy(f"{parts[1].strip()} {parts[2].rstrip()}", ANNOTATED, None) if parts else None


# ---- words ----

ENTITY = re.compile(r" ?&?(#\d+|quot|amp|lt|gt|nbsp);")  # most ampersands are missing in the source
TAG = re.compile(r"<[^<>]*>")
WORD = re.compile(r"\$?[^\W_]+(?:(?:\.?['-]|\.|(?<=\d),(?=\d))[^\W_]+)*%?")


def words_of_articles(rows: Rows) -> Rows:
    for row in rows:
        yield None if row is None else article_words(row)


def article_words(row: Row) -> Row:
    """Resolve tags and entities; keep punctuation only inside words."""
    text = ENTITY.sub(lambda match: html.unescape(f"&{match[1]};"), str(row["text"])).replace("\u2019", "'")
    return {**row, "text": " ".join(WORD.findall(TAG.sub(" ", text).replace("\\", " ").lower()))}

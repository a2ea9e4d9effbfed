"""Film reviews of the training half of the Large Movie Review Dataset: a file a review, NUMBER_RATING.txt.

Line NUMBER of a list beside them has the address of the film.
"""

import re
from collections.abc import Sequence

from factorcell.config import UserError

from .reading import Rows, clean
from .repository import Repository

FOLDER = "aclImdb/train/"
WORDS = 200  # of a review
NAME = re.compile(r"(\d+)_(\d+)\.txt")
FILM = re.compile(r"/title/(tt\d+)")
BEGINNING = re.compile(rf"\S+(?:\s+\S+){{0,{WORDS - 1}}}")


def rows(sources: Sequence[Repository]) -> Rows:
    """The beginning of a review, its rating and its film."""
    (source,) = sources
    for label in ("neg", "pos"):
        films = FILM.findall(source.text(f"{FOLDER}urls_{label}.txt"))
        for path in source.paths(f"{FOLDER}{label}/", ".txt"):
            name = NAME.fullmatch(path.rpartition("/")[2])
            if name is None:
                continue
            number, rating = name.groups()
            if int(number) >= len(films):
                raise UserError(f"{source}: {path} is the review of line {number}, and there are {len(films)} films")
            begun = BEGINNING.match(clean(source.text(path).replace("<br />", " ")))
            yield {"text": begun.group(), "rating": rating, "movie": films[int(number)]} if begun else None

"""Reviews of some thousand American hotels: a data frame of R, read by the package pyreadr.

Of the source's faults, hotels rated out of ten, descriptions in place of reviews and other languages are left out.
"""

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from factorcell.config import UserError

from .reading import Rows, clean
from .repository import Repository

PATH = "data/Hotel_Reviews.rda"
COLUMNS = ("reviews.text", "name", "city", "province", "reviews.rating")
BEST = 5.0
CHAIN = 3  # hotels under which a text is the chain's
CUT = re.compile(r"\s*\.\.\.\s*More$")
WORD = re.compile(r"[^\W\d_]+")
ENGLISH = frozenset(
    "the a an and or but not of to in on at for from with by as is are was were be been am it its this that there we i "
    "my our they you he she had has have very so all no if when which would could will do did just only here me your "
    "one up out about great good nice clean room rooms staff stay stayed hotel".split()
)
FOREIGN = frozenset("muy bien bueno buena tres bon bonne gut sehr molto ottimo todo y la le il und".split())
FEW = 8  # words, too few to count those of a language
SHARE = 0.25  # of the words of an English text, at least


class Review(NamedTuple):
    """A line of the frame, its rating as it stands, 0 for none."""

    text: str
    hotel: str
    city: str
    rating: float


def rows(sources: Sequence[Repository]) -> Rows:
    """A review with its hotel, the city and the rating."""
    (source,) = sources
    reviews = [read(record) for record in frame(source)]
    under, best = defaultdict[str, set[str]](set), defaultdict[str, float](float)
    for known in filter(None, reviews):
        under[known.text].add(known.hotel)
        best[known.hotel] = max(best[known.hotel], known.rating)
    for review in reviews:
        if review is None:
            yield None
        elif best[review.hotel] <= BEST and len(under[review.text]) < CHAIN and review.rating and english(review.text):
            rating = str(math.floor(review.rating + 0.5))
            yield {"text": review.text, "hotel": review.hotel, "city": review.city, "rating": rating}


def read(record: dict[str, Any]) -> Review | None:
    """A line of the frame; None without a text, a hotel, a city or a rating."""
    text, hotel, city, province, rating = (record[name] for name in COLUMNS)
    if not all(isinstance(value, str) and value.strip() for value in (text, hotel, city, province)):
        return None
    if not isinstance(rating, float | int) or math.isnan(rating):
        return None
    return Review(CUT.sub("", clean(text)), hotel, f"{city}, {province}", rating)


def english(text: str) -> bool:
    """Whether enough of the words are frequent English ones; of few words, whether all letters are English."""
    words = WORD.findall(text.lower())
    if len(words) < FEW:
        return text.isascii() and FOREIGN.isdisjoint(words)
    return sum(word in ENGLISH for word in words) >= SHARE * len(words)


def frame(source: Repository) -> Iterable[dict[str, Any]]:
    """The lines of the data frame. `UserError` without pyreadr, or where the file is no such frame."""
    try:
        import pyreadr  # type: ignore[import-not-found]  # a few megabytes that nothing else needs
    except ImportError:
        raise UserError("the package pyreadr, which reads data frames of R, is missing; pip install pyreadr") from None
    with tempfile.NamedTemporaryFile(suffix=".rda") as file:
        file.write(source.read(PATH))
        file.flush()
        try:
            (table,) = pyreadr.read_r(file.name).values()
        except Exception as error:  # a class of its own for each fault of the file
            raise UserError(f"{source}: {PATH} is no data frame of R ({error})") from None
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise UserError(f"{source}: {PATH} has no column {', '.join(missing)}")
    records: list[dict[str, Any]] = table.to_dict("records")
    return records

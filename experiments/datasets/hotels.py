"""Reviews of some thousand American hotels: a data frame of R, read by the package pyreadr.

Hotels rated out of ten, descriptions in place of reviews, and other languages are left out.
"""

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from factorcell.errors import UserError

from .reading import Rows, clean
from .repository import Repository

PATH = "data/Hotel_Reviews.rda"
COLUMNS = ("reviews.text", "name", "city", "province", "reviews.rating")
BEST = 5.0  # highest rating; hotels with higher ones are rated out of ten
MAX_HOTELS_PER_TEXT = 3  # a text that this many hotels share is a description by their chain
CUT = re.compile(r"\s*\.\.\.\s*More$")
WORD = re.compile(r"[^\W\d_]+")
ENGLISH = frozenset(
    "the a an and or but not of to in on at for from with by as is are was were be been am it its this that there we i "
    "my our they you he she had has have very so all no if when which would could will do did just only here me your "
    "one up out about great good nice clean room rooms staff stay stayed hotel".split()
)
FOREIGN = frozenset("muy bien bueno buena tres bon bonne gut sehr molto ottimo todo y la le il und".split())
MIN_WORDS = 8  # texts with fewer words are too short to count English words
MIN_ENGLISH_SHARE = 0.25  # minimum share of frequent English words in an English text


class Review(NamedTuple):
    """A line of the frame; the rating 0 means that the guest gave none."""

    text: str
    hotel: str
    city: str
    rating: float


def rows(sources: Sequence[Repository]) -> Rows:
    (source,) = sources
    reviews = [parse_review(record) for record in read_frame(source)]
    hotels_of_text, best_rating = defaultdict[str, set[str]](set), defaultdict[str, float](float)
    for known in filter(None, reviews):
        hotels_of_text[known.text].add(known.hotel)
        best_rating[known.hotel] = max(best_rating[known.hotel], known.rating)
    for review in reviews:
        if review is None:
            yield None
        elif (
            best_rating[review.hotel] <= BEST
            and len(hotels_of_text[review.text]) < MAX_HOTELS_PER_TEXT
            and review.rating
            and is_english(review.text)
        ):
            rating = str(math.floor(review.rating + 0.5))
            yield {"text": review.text, "hotel": review.hotel, "city": review.city, "rating": rating}


def parse_review(record: dict[str, Any]) -> Review | None:
    """Parse a line of the frame; return None without a text, a hotel, a city or a rating."""
    text, hotel, city, province, rating = (record[name] for name in COLUMNS)
    if not all(isinstance(value, str) and value.strip() for value in (text, hotel, city, province)):
        return None
    if not isinstance(rating, float | int) or math.isnan(rating):
        return None
    return Review(CUT.sub("", clean(text)), hotel, f"{city}, {province}", rating)


def is_english(text: str) -> bool:
    """Return whether enough words are frequent English ones; for short texts, whether all letters are English."""
    words = WORD.findall(text.lower())
    if len(words) < MIN_WORDS:
        return text.isascii() and FOREIGN.isdisjoint(words)
    return sum(word in ENGLISH for word in words) >= MIN_ENGLISH_SHARE * len(words)


def read_frame(source: Repository) -> Iterable[dict[str, Any]]:
    """Return the lines of the data frame. Raises `UserError` without pyreadr, or if the file is not such a frame."""
    try:
        import pyreadr  # type: ignore[import-not-found]  # a few megabytes that nothing else needs
    except ImportError:
        raise UserError(
            "hotels requires the package pyreadr, which reads data frames of R; pip install pyreadr"
        ) from None
    with tempfile.NamedTemporaryFile(suffix=".rda") as file:
        file.write(source.read(PATH))
        file.flush()
        try:
            (table,) = pyreadr.read_r(file.name).values()
        except Exception as error:  # pyreadr has many exception classes
            raise UserError(f"{source}: {PATH} is not a data frame of R ({error})") from None
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise UserError(f"{source}: {PATH} has no column {', '.join(missing)}")
    records: list[dict[str, Any]] = table.to_dict("records")
    return records

"""Long reviews of few hotels: a file per hotel, blocks of lines <Name>value, the first block about the hotel."""

import re
from collections.abc import Sequence

from .reading import Row, Rows
from .repository import Repository

FOLDER = "LARA/Data/Reviews-bk/"
FIELD = re.compile(r"^<([^>\n]+)>(.*)$", re.MULTILINE)
MORE = re.compile(r"showReview\(\d+, 'full'\);")  # a script of the page after a shortened review
RATING = re.compile(r"[1-5](\.0+)?")
COUNTRY = " Dominican Republic"
LOCALITY = re.compile(r'property="v:locality">([^<]+)<')


def rows(sources: Sequence[Repository]) -> Rows:
    """Yield reviews with hotel, place and rating; a review of several files occurs once."""
    (source,) = sources
    distinct = set[str]()
    for path in source.paths(FOLDER):
        content = source.read(path).decode("utf-8-sig", "replace").replace("\r\n", "\n")
        first, *blocks = (dict(FIELD.findall(block)) for block in re.split(r"\n\s*\n", content))
        if "Hotel Name" not in first:
            continue
        for review in blocks:
            if not review:
                continue
            name = review.get("Review ID") or f"{review.get('Author')}: {review.get('Content')}"
            if name in distinct:
                continue
            distinct.add(name)
            rating, text = review.get("Overall", ""), MORE.sub("", review.get("Content", ""))
            row: Row = {"text": text, "hotel": first["Hotel Name"], "city": place(first), "rating": rating[:1]}
            yield row if text and RATING.fullmatch(rating) else None


def place(hotel: dict[str, str]) -> str:
    if match := LOCALITY.search(hotel.get("Hotel Address", "")):
        return match[1]
    return hotel.get("URL", "").removesuffix(".html").rpartition("-")[2].replace("_", " ").removesuffix(COUNTRY)

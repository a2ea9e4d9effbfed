"""Tweets with coordinates, from tables of geography courses, each in its own repository."""

import re
from collections.abc import Sequence

from .reading import Rows, clean, records
from .repository import Repository

COLUMNS = ("created_at", "lat", "lng", "text")
LINK = re.compile(r"https?://t\.co/\w*")
MIN_CHARACTERS = 10  # of a tweet


def rows(sources: Sequence[Repository]) -> Rows:
    """Yield tweets with latitude and longitude; a tweet of several tables occurs once."""
    distinct = set[tuple[str, str, str]]()
    for source in sources:
        for path in source.paths():
            if not path.lower().endswith(".csv"):
                continue
            content = decoded(source.read(path))
            head = {name.strip() for name in content.partition("\n")[0].split(",")}
            if not head.issuperset(COLUMNS):
                continue
            for record in records(content, f"{source}: {path}", COLUMNS):
                lat, lon = (None, None) if record is None else (number(record["lat"]), number(record["lng"]))
                if record is None or lat is None or lon is None:
                    yield None
                    continue
                tweet = record["created_at"], record.get("username", ""), record["text"]
                text = clean(LINK.sub("", record["text"]))
                if tweet not in distinct and len(text) >= MIN_CHARACTERS:
                    distinct.add(tweet)
                    yield {"text": text, "lat": lat, "lon": lon}


def decoded(content: bytes) -> str:
    """Decode UTF-8, or else Latin-1, which spreadsheets in Western Europe write."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def number(field: str) -> float | None:
    try:
        degrees = float(field)
    except ValueError:
        return None
    return degrees if abs(degrees) <= 180 else None

"""Titles of posts on Reddit: a table a community, of which the 500 with the highest scores are taken."""

import html
from collections.abc import Sequence

from .reading import Row, Rows, clean, records
from .repository import Repository

FOLDER = "data/"
MOST = 500


def rows(sources: Sequence[Repository]) -> Rows:
    """A title and its community; no post for adults, no title twice in a community."""
    (source,) = sources
    for path in source.paths(FOLDER, ".csv"):
        scored = list[tuple[int, str]]()
        for record in records(source.text(path), f"{source}: {path}", ["title", "score", "over_18"]):
            if record is None or not record["score"].lstrip("-").isdecimal():
                yield None
            elif record["over_18"] != "True":
                scored.append((int(record["score"]), clean(html.unescape(record["title"]))))
        best = dict[str, Row]()
        name = path.removeprefix(FOLDER).removesuffix(".csv")
        for _, title in sorted(scored, key=lambda one: -one[0]):
            best.setdefault(title, {"text": title, "subreddit": name})
        yield from list(best.values())[:MOST]

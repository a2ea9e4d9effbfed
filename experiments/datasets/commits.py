"""Subjects of commits of public projects by who wrote them, in the order of time: what stands in for queries."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from corpora import place

from .reading import Rows, clean
from .repository import Repository

FORM = "%an%x1f%at%x1f%s"
LONGEST = 100  # characters
ROBOT = re.compile(r"\[bot\]|\bbot$", re.IGNORECASE)
RELEASE = re.compile(r"((bump|prepar\w+|release|git|version|for|to|v)[ -]*)*\d+(\.\d+)+\S*", re.IGNORECASE)


def rows(sources: Sequence[Repository]) -> Rows:
    """A subject, its author as a number that hides the name, the project, the time; by author, then in order of time.

    One who wrote for two projects is two authors. Merges, robots and releases are left out.
    """
    found = []
    for source in sources:
        for entry in source.log(FORM):
            parts = entry.split("\x1f")
            if len(parts) != 3 or not parts[1].isdecimal():
                yield None
                continue
            name, seconds, subject = parts[0].strip().lower(), int(parts[1]), clean(parts[2])
            if ROBOT.search(name) or RELEASE.fullmatch(subject) or not subject:
                continue
            author = f"{source.name}:{place(f'{source.name} {name}'):016x}"
            found.append((author, seconds, source.name, subject[:LONGEST].strip()))
    for author, seconds, project, subject in sorted(found, key=lambda one: one[:2]):
        time = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield {"text": subject, "user": author, "project": project, "time": time}

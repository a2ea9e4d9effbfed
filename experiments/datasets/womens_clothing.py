"""Reviews of women's clothing: one packed table. The review without its title, what is reviewed, and whose age."""

from collections.abc import Sequence

from .reading import Rows, records, unpacked
from .repository import Repository

PATH = "Womens Clothing E-Commerce Reviews.csv.zip"
COLUMNS = {
    "text": "Review Text",
    "department": "Department Name",
    "class": "Class Name",
    "rating": "Rating",
    "age": "Age",
}


def rows(sources: Sequence[Repository]) -> Rows:
    """A review a line; those without a text or a department are left out."""
    (source,) = sources
    content = unpacked(source, PATH, ".csv")
    for record in records(content, f"{source}: {PATH}", list(COLUMNS.values())):
        if record is None or not record["Age"].isdecimal():
            yield None
            continue
        row = {ours: record[theirs] for ours, theirs in COLUMNS.items()}
        if all(value.strip() for value in row.values()):
            yield {**row, "age": float(row["age"])}

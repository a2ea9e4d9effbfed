"""What models of hotel reviews know of hotels that nobody told them: their region, and the class of their chain.

Figures 2 and 6 and table 5 of the TACL paper, in the thesis 4.3, 4.6, 4.7 and 4.5. A chain's class is how it is
marketed (hotel_classes.csv), as there is no rating by an agency here; a region is a state, as cities have few hotels.
"""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import pyarrow as pa

import corpora
import samples
from corpora import Tables
from factorcell.evaluation import embeddings
from factorcell.evaluation.embeddings import Embeddings
from factorcell.model.run import Run
from study import HERE, Measured, Row

CLASSES = ("economy", "midscale", "upscale")  # from low to high
STATE = re.compile(r", ([A-Z]{2})$")
WORDS = re.compile(r"\w+")
GROUPS = 8  # regions of figure 4.6
REVIEW = "lovely place and the staff could not do enough for us but the room was small and the bed was not clean"
BEST, WORST = {"rating": "5"}, {"rating": "1"}
RATINGS = ("5", "3", "1")  # of the three hotels of table 4.5


@cache
def chains() -> dict[str, str]:
    """The class of each chain."""
    with (HERE / "hotel_classes.csv").open(encoding="utf-8", newline="") as file:
        return {row["chain"]: row["class"] for row in csv.DictReader(file)}


def class_of(hotel: str) -> str | None:
    """The class of the chain that a hotel's name has, of several the longest; None of a hotel of no chain."""
    name = hotel.lower().replace("-", " ")
    found = [chain for chain in chains() if chain in name]
    return chains()[max(found, key=len)] if found else None


def region_of(city: str) -> str | None:
    """The state in the name of a city."""
    found = STATE.search(city)
    return found[1] if found else None


def described(path: Path) -> list[Row]:
    """The hotel, the region and the class of every text of a table."""
    rows = corpora.read(path).select(["hotel", "city"]).to_pylist()
    return [{"hotel": row["hotel"], "region": region_of(row["city"]), "class": class_of(row["hotel"])} for row in rows]


def with_classes(path: Path) -> pa.Table:
    """A table with the class of each hotel; texts of hotels of no chain are left out."""
    table = corpora.read(path)
    found = [class_of(hotel) for hotel in table["hotel"].to_pylist()]
    return table.append_column("class", pa.array(found)).filter(pa.array([name is not None for name in found]))


def towns(path: Path) -> dict[str, str]:
    """The town of each hotel of a table, without its state."""
    rows = corpora.read(path).select(["hotel", "city"]).to_pylist()
    return {row["hotel"]: words_of(STATE.sub("", row["city"])) for row in rows}


def words_of(text: str) -> str:
    """A text in small letters, with nothing but blanks between its words."""
    return " ".join(WORDS.findall(text.lower()))


def mentioned(texts: Sequence[str], hotels: Sequence[str], towns: Mapping[str, str]) -> Row:
    """Shares of texts about `hotels` that mention a town, that of their hotel, and the one that most texts mention.

    A town whose name is part of a chain's, such as Hampton, is left out: who writes it may mean the brand.
    """
    brands = set(" ".join(chains()).split())
    every, spaced = set(towns.values()) - brands, [f" {words_of(text)} " for text in texts]
    named = [{town for town in every if f" {town} " in text} for text in spaced]
    most = Counter(town for found in named for town in found).most_common(1)
    own = [towns.get(hotel) in found for hotel, found in zip(hotels, named, strict=True)]
    counts = {"any": sum(map(bool, named)), "own": sum(own), "commonest": most[0][1] if most else 0}
    return {f"town_{name}": count / max(1, len(texts)) for name, count in counts.items()}


def known(run: Run, tables: Tables) -> Measured:
    """What an adapted run makes of a review by its rating, of regions and classes, and of three hotels."""
    if not run.model.adapted:
        return Measured({})
    hotels = run.schema.variable("hotel").values[1 : 1 + len(RATINGS)]
    contexts = [{"hotel": hotel, "rating": rating} for hotel, rating in zip(hotels, RATINGS, strict=False)]
    row: Row = {
        **samples.tried("ratios", lambda: samples.ratios(run, REVIEW, BEST, WORST)),
        **samples.tried("boosted", lambda: samples.boosted(run, contexts)),
    }
    rows = described(tables["train"])
    for column in ("region", "class"):
        row |= samples.tried(column, partial(mapped, run, rows, column))
    return Measured(row)


def mapped(run: Run, rows: list[Row], column: str) -> Row:
    """Where the groups of a column lie among the embeddings of hotels, and how well these tell the column."""
    hotels = Embeddings.of(run, "hotel")
    told = embeddings.read_column(hotels, rows, f"{column}:category")
    found = {
        "ellipses": embeddings.ellipses(embeddings.points(hotels, told), GROUPS),
        "neighbours": embeddings.agreement(hotels, told),
        "predicted": embeddings.predict(hotels, told),
    }
    return {column: found}

"""Regions and classes of hotels in the embedding space of models that do not read them (figures 4.6 and 4.7).

The texts have no official hotel class, so a class is the market segment of the chain (hotel_classes.csv). Cities have
few hotels, so a region is a state.
"""

import csv
import re
from functools import cache
from pathlib import Path

import pyarrow as pa

import corpora
from corpora import Tables
from factorcell.errors import UserError
from factorcell.evaluation.explaining import embeddings
from factorcell.evaluation.explaining.embeddings import Embeddings
from factorcell.runs.run import Run
from study import EXPERIMENTS_FOLDER, Measurement, Row

CLASSES = ("economy", "midscale", "upscale")  # from low to high
STATE = re.compile(r", ([A-Z]{2})$")
GROUPS = 8  # regions of figure 4.6


@cache
def chains() -> dict[str, str]:
    with (EXPERIMENTS_FOLDER / "hotel_classes.csv").open(encoding="utf-8", newline="") as file:
        return {row["chain"]: row["class"] for row in csv.DictReader(file)}


def class_of(hotel: str) -> str | None:
    """Return the class of the longest chain name in the name of a hotel, or None without a chain."""
    name = hotel.lower().replace("-", " ")
    matches = [chain for chain in chains() if chain in name]
    return chains()[max(matches, key=len)] if matches else None


def region_of(city: str) -> str | None:
    match = STATE.search(city)
    return match[1] if match else None


def region_and_class_rows(path: Path) -> list[Row]:
    rows = corpora.read(path).select(["hotel", "city"]).to_pylist()
    return [{"hotel": row["hotel"], "region": region_of(row["city"]), "class": class_of(row["hotel"])} for row in rows]


def with_classes(path: Path) -> pa.Table:
    """Return the texts of hotels of chains, with the class of each hotel."""
    table = corpora.read(path)
    classes = [class_of(hotel) for hotel in table["hotel"].to_pylist()]
    return table.append_column("class", pa.array(classes)).filter(pa.array([name is not None for name in classes]))


def measure_embeddings(run: Run, tables: Tables) -> Measurement:
    if not run.model.is_adapted:
        return Measurement({})
    hotels, rows, row = Embeddings.from_run(run, "hotel"), region_and_class_rows(tables["train"]), Row()
    for column in ("region", "class"):
        try:
            labels = embeddings.read_column(hotels, rows, f"{column}:category")
            row[column] = {
                "ellipses": embeddings.fit_ellipses(embeddings.map_points(hotels, labels), GROUPS),
                "neighbours": embeddings.neighbour_agreement(hotels, labels),
                "predicted": embeddings.predict_column(hotels, labels),
            }
        except UserError as error:  # a trial may have too few hotels
            row[column] = {"none": str(error)}
    return Measurement(row)

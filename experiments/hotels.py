"""Regions and classes of hotels in the embedding space of models that do not read them (figures 4.6 and 4.7).

The texts have no official hotel class, so a class is the market segment of the chain (hotel_classes.csv). Cities have
few hotels, so a region is a state.
"""

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn import ensemble, model_selection

import corpora
from corpora import Tables
from factorcell.errors import UserError
from factorcell.evaluation.explaining import embeddings
from factorcell.evaluation.explaining.embeddings import Embeddings, ValueColumn
from factorcell.runs.run import Run
from study import EXPERIMENTS_FOLDER, Measurement, Row

CLASSES = ("economy", "midscale", "upscale")  # from low to high
STATE = re.compile(r", ([A-Z]{2})$")
GROUPS = 8  # regions of figure 4.6
FOLDS = 5  # of the cross-validation


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
                "predicted": predict_column(hotels, labels),
            }
        except UserError as error:  # a trial may have too few hotels
            row[column] = {"none": str(error)}
    return Measurement(row)


def predict_column(known: Embeddings, column: ValueColumn, *, seed: int = 0) -> Row:
    """Predict the entries of a column from the embeddings of the values, with gradient-boosted trees.

    The figures come from a cross-validation. The row has `column`, `variable`, `values` (the number of values) and
    `folds`. For a column of groups, it has the number of `groups`, the `accuracy`, its standard `deviation` over folds,
    and the share of the `majority` group; groups with fewer than `FOLDS` values are omitted. For a column of numbers,
    it has `r2` and the `correlation` of prediction and number.
    """
    indices = column.known_indices
    targets: NDArray[Any] = np.array(column.names)[indices] if column.numbers is None else column.numbers[indices]
    if column.numbers is None:
        groups, group_sizes = np.unique(targets, return_counts=True)
        is_frequent = np.isin(targets, groups[group_sizes >= FOLDS])
        indices, targets = indices[is_frequent], targets[is_frequent]
        folds = model_selection.StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        model = ensemble.GradientBoostingClassifier(random_state=seed)
    else:
        folds = model_selection.KFold(FOLDS, shuffle=True, random_state=seed)
        model = ensemble.GradientBoostingRegressor(random_state=seed)
    if len(indices) < 2 * FOLDS or len(np.unique(targets)) < 2:
        group_condition = f" in groups of at least {FOLDS}" if column.numbers is None else ""
        valid = f"at least {2 * FOLDS} values{group_condition} with two or more different entries"
        actual = f"{len(indices)} values (different entries: {len(np.unique(targets))})"
        raise UserError(f"{column.name}: expected {valid}, got {actual}")
    vectors, predictions, fold_accuracies = known.vectors[indices], targets.copy(), []
    splits = list(folds.split(vectors, targets))  # pairs of indices of the training values and the test values
    for train, test in splits:
        model.fit(vectors[train], targets[train])
        predictions[test] = model.predict(vectors[test])
        fold_accuracies.append(float((predictions[test] == targets[test]).mean()))
    row = {"column": column.name, "variable": known.variable, "values": len(indices), "folds": FOLDS}
    if column.numbers is None:
        group_sizes = np.unique(targets, return_counts=True)[1]
        accuracy = float((predictions == targets).mean())
        rates = {"accuracy": accuracy, "deviation": float(np.std(fold_accuracies, ddof=1))}
        return row | {"groups": len(group_sizes), **rates, "majority": float(group_sizes.max() / len(targets))}
    sum_of_squares = ((targets - targets.mean()) ** 2).sum()
    correlation = float(np.corrcoef(predictions, targets)[0, 1]) if np.ptp(predictions) else 0.0
    r2 = float(1 - ((predictions - targets) ** 2).sum() / sum_of_squares)
    return row | {"r2": r2, "correlation": correlation}

"""Regions and classes of hotels in the embedding space of models that do not read them (figures 4.6 and 4.7).

The texts have no official hotel class, so a class is the market segment of the chain (hotel_classes.csv). Cities have
few hotels, so a region is a state.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn import ensemble, model_selection

import corpora
from corpora import Tables
from factorcell.errors import UserError
from factorcell.evaluation.explaining import embeddings
from factorcell.evaluation.explaining.embeddings import MIN_VALUES, Embeddings
from factorcell.runs.run import Run
from study import EXPERIMENTS_FOLDER, Measurement, Row

CLASSES = ("economy", "midscale", "upscale")  # from low to high
STATE = re.compile(r", ([A-Z]{2})$")
GROUPS = 8  # regions of figure 4.6
HALF_AXIS = 1.5  # half axes of an ellipse in standard deviations (TACL 2018, figure 6)
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
            groups = embeddings.read_column(hotels, rows, f"{column}:category")
            row[column] = {
                "ellipses": fit_ellipses(embeddings.map_points(hotels, groups)),
                "neighbours": neighbour_agreement(hotels, groups),
                "predicted": predict_groups(hotels, groups),
            }
        except UserError as error:  # a trial may have too few hotels
            row[column] = {"none": str(error)}
    return Measurement(row)


def fit_ellipses(rows: Sequence[Row]) -> list[Row]:
    """Fit an ellipse to the points of each of the `GROUPS` largest groups; return a row for each.

    A row has `group`, `count` (its points) and the centre `x`, `y`. The half axes are `HALF_AXIS` standard deviations
    long: `wide` lies in the direction `angle` (in degrees from the x axis), and `high` is perpendicular to it.
    """
    results: list[Row] = []
    for group, count in Counter(str(row["group"]) for row in rows).most_common(GROUPS):
        if count < MIN_VALUES:
            break
        points = np.array([(row["x"], row["y"]) for row in rows if row["group"] == group])
        variances, axes = np.linalg.eigh(np.cov(points.T))
        high, wide = (HALF_AXIS * np.sqrt(np.maximum(variances, 0.0))).tolist()
        direction_x, direction_y = axes[:, 1]  # of the axis with the larger variance
        angle = math.degrees(math.atan2(direction_y, direction_x)) % 180
        x, y = points.mean(0).tolist()
        results.append({"group": group, "count": count, "x": x, "y": y, "wide": wide, "high": high, "angle": angle})
    return results


def neighbour_agreement(known: Embeddings, groups: Mapping[str, str]) -> Row:
    """Measure how often a value and its nearest neighbour by cosine are in the same group.

    The row has the number of `values` with a group and of `groups`, the share `same` of values whose neighbour is in
    the same group, and `chance`, the share of random pairs in the same group.
    """
    vectors, names = select_groups(known, groups)
    if len(names) < MIN_VALUES:
        raise UserError(f"expected groups of at least {MIN_VALUES} values, got {len(names)}")
    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = directions @ directions.T
    np.fill_diagonal(cosines, -np.inf)  # a value is not its own neighbour
    group_sizes = np.unique(names, return_counts=True)[1]
    chance = float((group_sizes * (group_sizes - 1)).sum() / (len(names) * (len(names) - 1)))
    same = float((names[cosines.argmax(1)] == names).mean())
    return {"values": len(names), "groups": len(group_sizes), "same": same, "chance": chance}


def select_groups(known: Embeddings, groups: Mapping[str, str]) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Return the embeddings of the values with a group, and their groups."""
    has_group = np.array([value in groups for value in known.values])
    return known.vectors[has_group], np.array([groups[value] for value in known.values if value in groups])


def predict_groups(known: Embeddings, groups: Mapping[str, str], *, seed: int = 0) -> Row:
    """Predict the groups of values from their embeddings, with gradient-boosted trees, by cross-validation.

    The row has the numbers of `values`, `folds` and `groups`, the `accuracy`, its standard `deviation` over folds, and
    the share of the `majority` group. Groups with fewer than `FOLDS` values are omitted.
    """
    vectors, targets = select_groups(known, groups)
    names, group_sizes = np.unique(targets, return_counts=True)
    is_frequent = np.isin(targets, names[group_sizes >= FOLDS])
    vectors, targets = vectors[is_frequent], targets[is_frequent]
    if len(targets) < 2 * FOLDS or len(np.unique(targets)) < 2:
        valid = f"at least {2 * FOLDS} values in groups of at least {FOLDS} with two or more different entries"
        raise UserError(f"expected {valid}, got {len(targets)} values (different entries: {len(np.unique(targets))})")
    model, predictions, fold_accuracies = ensemble.GradientBoostingClassifier(random_state=seed), targets.copy(), []
    folds = model_selection.StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for train, test in list(folds.split(vectors, targets)):
        model.fit(vectors[train], targets[train])
        predictions[test] = model.predict(vectors[test])
        fold_accuracies.append(float((predictions[test] == targets[test]).mean()))
    group_sizes = np.unique(targets, return_counts=True)[1]
    rates = {"accuracy": float((predictions == targets).mean()), "deviation": float(np.std(fold_accuracies, ddof=1))}
    sizes = {"values": len(targets), "folds": FOLDS, "groups": len(group_sizes)}
    return {"variable": known.variable, **sizes, **rates, "majority": float(group_sizes.max() / len(targets))}

"""Classes and regions of hotels, against closed forms, loops and planted groups."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from sklearn import ensemble, model_selection

import hotels
from factorcell.errors import UserError
from factorcell.evaluation.explaining import embeddings
from tests.evaluation.test_embeddings import clouds, groups_of

Row = dict[str, Any]


@pytest.mark.parametrize(
    ("hotel", "name"),
    [
        ("Super 8 Denver", "economy"),
        ("Comfort Inn-Downtown", "midscale"),
        ("Fairfield Inn by Marriott Boise", "midscale"),
        ("Residence Inn", "upscale"),
        ("Rose Cottage", None),
    ],
)
def test_a_hotel_has_the_class_of_its_longest_chain_name(hotel: str, name: str | None) -> None:
    """Case and hyphens do not matter."""
    assert hotels.class_of(hotel) == name


def test_texts_have_regions_and_classes(tmp_path: Path) -> None:
    """A city without a state has no region; hotels without a chain have no class."""
    rows = [
        {"text": "a", "hotel": "Super 8", "city": "Boise, ID"},
        {"text": "b", "hotel": "Rose Cottage", "city": "Oslo, Norway"},
        {"text": "c", "hotel": "Hyatt", "city": "Reno, NV"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    rows_with_labels = hotels.region_and_class_rows(tmp_path / "t.parquet")
    assert [row["region"] for row in rows_with_labels] == ["ID", None, "NV"]
    assert [row["class"] for row in rows_with_labels] == ["economy", None, "upscale"]
    chain_texts = hotels.with_classes(tmp_path / "t.parquet").to_pylist()
    assert [(row["text"], row["class"]) for row in chain_texts] == [("a", "economy"), ("c", "upscale")]
    assert set(hotels.chains().values()) == set(hotels.CLASSES)


def test_an_ellipse_has_the_standard_deviations_of_its_group() -> None:
    """For points on the axes of a rotated cross, half axes, angle and centre have a closed form."""
    angle, far, near = math.radians(30), 4.0, 1.0
    along, across = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
    cross = [*(side * far * along for side in (-1, 1)), *(side * near * across for side in (-1, 1))]
    rows = [{"x": x + 10, "y": y - 5, "group": "a"} for x, y in cross]
    (ellipse,) = hotels.fit_ellipses(rows)
    assert (ellipse["group"], ellipse["count"]) == ("a", 4)
    assert (ellipse["x"], ellipse["y"]) == pytest.approx((10, -5))
    assert ellipse["wide"] == pytest.approx(1.5 * math.sqrt(2 * far**2 / 3))
    assert ellipse["high"] == pytest.approx(1.5 * math.sqrt(2 * near**2 / 3))
    assert ellipse["angle"] == pytest.approx(30)


def test_an_ellipse_contains_the_expected_share_of_gaussian_points() -> None:
    """An ellipse of 1.5 standard deviations contains 1 - exp(-1.125) of a Gaussian in two dimensions."""
    cloud = np.random.default_rng(0).normal(size=(20000, 2)) @ np.array([[2.0, 0.3], [0.0, 0.5]])
    rows = [{"x": x, "y": y, "group": "a"} for x, y in cloud.tolist()]
    (ellipse,) = hotels.fit_ellipses(rows)
    angle = math.radians(ellipse["angle"])
    local = (cloud - (ellipse["x"], ellipse["y"])) @ np.array(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    inside = ((local / (ellipse["wide"], ellipse["high"])) ** 2).sum(1) < 1
    assert inside.mean() == pytest.approx(1 - math.exp(-(1.5**2) / 2), abs=0.01)


def test_the_largest_groups_have_ellipses() -> None:
    rows = embeddings.map_points(clouds((4, 6, 2, 5)), groups_of((4, 6, 2, 5)))
    groups = [ellipse["group"] for ellipse in hotels.fit_ellipses(rows)]
    assert groups == ["g1", "g3", "g0"], "a group of two points has no ellipse"


def test_agreement_equals_a_loop_over_values() -> None:
    embedded = clouds(apart=0.5)
    groups = {**groups_of(), "v27": "alone"}
    del groups["v25"], groups["v26"]
    row = hotels.neighbour_agreement(embedded, groups)
    indices = [index for index, value in enumerate(embedded.values) if value in groups]
    values = tuple(embedded.values[index] for index in indices)
    part = replace(embedded, values=values, vectors=embedded.vectors[indices], counts=embedded.counts[indices])
    same = [groups[part.neighbours([value], 1)[0]["near"]] == groups[value] for value in values]
    pairs = list(itertools.permutations(values, 2))
    assert row["same"] == pytest.approx(sum(same) / len(same))
    assert 0.2 < row["same"] < 0.95, "some but not all neighbours must agree, or the test would be weak"
    assert row["chance"] == pytest.approx(sum(groups[a] == groups[b] for a, b in pairs) / len(pairs))
    assert (row["values"], row["groups"]) == (26, 4)
    with pytest.raises(UserError, match="at least 3 values, got 2"):
        hotels.neighbour_agreement(clouds((3,)), {"v0": "a", "v1": "b"})


def test_planted_groups_are_predicted_and_random_ones_are_not() -> None:
    embedded, groups = clouds((14, 9), width=3), groups_of((14, 9))
    result = hotels.predict_groups(embedded, groups, seed=3)
    assert result["accuracy"] > 0.9
    assert result["majority"] == pytest.approx(14 / 23)
    assert (result["values"], result["groups"]) == (23, 2)
    assert result["deviation"] >= 0
    assert hotels.predict_groups(embedded, groups, seed=3) == result
    names = np.random.default_rng(0).permutation(list(groups.values())).tolist()
    assert hotels.predict_groups(embedded, dict(zip(groups, names, strict=True)))["accuracy"] < 0.8


def test_groups_smaller_than_the_number_of_folds_are_excluded() -> None:
    embedded = clouds((10, 10, 3))
    result = hotels.predict_groups(embedded, groups_of((10, 10, 3)))
    assert (result["values"], result["groups"], result["majority"]) == (20, 2, 0.5)
    with pytest.raises(UserError, match="in groups of at least 5"):
        hotels.predict_groups(embedded, {f"v{place}": f"g{place % 7}" for place in range(23)})
    with pytest.raises(UserError, match=r"got 23 values \(different entries: 1\)"):
        hotels.predict_groups(embedded, dict.fromkeys(embedded.values, "a"))


def test_predictions_equal_scikit_learns_cross_validation() -> None:
    """Every value is predicted by trees that were not fitted on it, as in scikit-learn's cross-validation."""
    embedded, groups = clouds((9, 9), apart=0.3), groups_of((9, 9))
    names = np.array(list(groups.values()))
    folds = model_selection.StratifiedKFold(5, shuffle=True, random_state=4)
    trees = ensemble.GradientBoostingClassifier(random_state=4)
    predicted_names = model_selection.cross_val_predict(trees, embedded.vectors, names, cv=folds)
    result = hotels.predict_groups(embedded, groups, seed=4)
    assert result["accuracy"] == pytest.approx((predicted_names == names).mean())
    shares = [(predicted_names == names)[test].mean() for _, test in folds.split(embedded.vectors, names)]
    assert result["deviation"] == pytest.approx(np.std(shares, ddof=1))

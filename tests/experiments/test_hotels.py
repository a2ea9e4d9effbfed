"""Classes and regions of hotels."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from sklearn import ensemble, metrics, model_selection

import hotels
from factorcell.errors import UserError
from factorcell.evaluation.explaining.embeddings import ValueColumn
from tests.evaluation.test_embeddings import clouds, groups_of


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


def test_planted_groups_are_predicted_and_random_ones_are_not() -> None:
    embedded = clouds((14, 9), width=3)
    result = hotels.predict_column(embedded, groups_of((14, 9)), seed=3)
    assert result["accuracy"] > 0.9
    assert result["majority"] == pytest.approx(14 / 23)
    assert (result["values"], result["groups"]) == (23, 2)
    assert result["deviation"] >= 0
    assert hotels.predict_column(embedded, groups_of((14, 9)), seed=3) == result
    names = np.random.default_rng(0).permutation(np.array(groups_of((14, 9)).names)).tolist()
    assert hotels.predict_column(embedded, ValueColumn("theme", tuple(names)))["accuracy"] < 0.8


def test_groups_smaller_than_the_number_of_folds_are_excluded() -> None:
    embedded = clouds((10, 10, 3))
    result = hotels.predict_column(embedded, groups_of((10, 10, 3)))
    assert (result["values"], result["groups"], result["majority"]) == (20, 2, 0.5)
    with pytest.raises(UserError, match=r"theme.*5"):
        hotels.predict_column(embedded, ValueColumn("theme", tuple(f"g{place % 7}" for place in range(23))))
    with pytest.raises(UserError, match=r"theme.*5.*23.*1"):
        hotels.predict_column(embedded, ValueColumn("theme", ("a",) * 23))


def test_numbers_are_predicted() -> None:
    embedded = clouds((20, 20))
    high = ValueColumn("height", numbers=embedded.vectors[:, 0] * 2 + 1)
    result = hotels.predict_column(embedded, high)
    assert result["r2"] > 0.9
    assert result["correlation"] > 0.95
    noise = ValueColumn("height", numbers=np.random.default_rng(0).normal(size=40))
    assert hotels.predict_column(embedded, noise)["r2"] < 0.2
    with pytest.raises(UserError, match=r"height.*10.*9"):
        hotels.predict_column(
            embedded, ValueColumn("height", numbers=np.array([*range(9), *[math.nan] * 31], dtype=float))
        )


def test_predictions_equal_scikit_learns_cross_validation() -> None:
    """Every value is predicted by trees that were not fitted on it, as in scikit-learn's cross-validation."""
    embedded, groups = clouds((9, 9), apart=0.3), groups_of((9, 9))
    numbers = embedded.vectors.sum(1) + np.random.default_rng(1).normal(size=18)
    names = np.array(groups.names)
    folds = model_selection.StratifiedKFold(5, shuffle=True, random_state=4)
    trees = ensemble.GradientBoostingClassifier(random_state=4)
    predicted_names = model_selection.cross_val_predict(trees, embedded.vectors, names, cv=folds)
    result = hotels.predict_column(embedded, groups, seed=4)
    assert result["accuracy"] == pytest.approx((predicted_names == names).mean())
    shares = [(predicted_names == names)[test].mean() for _, test in folds.split(embedded.vectors, names)]
    assert result["deviation"] == pytest.approx(np.std(shares, ddof=1))
    number_folds = model_selection.KFold(5, shuffle=True, random_state=4)
    predicted_numbers = model_selection.cross_val_predict(
        ensemble.GradientBoostingRegressor(random_state=4), embedded.vectors, numbers, cv=number_folds
    )
    row = hotels.predict_column(embedded, ValueColumn("height", numbers=numbers), seed=4)
    assert row["r2"] == pytest.approx(metrics.r2_score(numbers, predicted_numbers))
    assert row["correlation"] == pytest.approx(np.corrcoef(numbers, predicted_numbers)[0, 1])

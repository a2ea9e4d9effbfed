"""Maps of columns outside the model, against closed forms and loops."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from factorcell.errors import UserError
from factorcell.evaluation.explaining import embeddings
from tests.evaluation.test_embeddings import clouds

Row = dict[str, Any]


def test_a_column_of_names_is_aggregated_to_the_most_frequent() -> None:
    embedded = clouds((4,))
    names_of = {"v0": "a b b", "v1": "b", "v3": "a a b", "elsewhere": "c c c"}
    rows = [{"place": value, "theme": name} for value, names in names_of.items() for name in names.split()]
    gaps: list[Row] = [{"place": "v1", "theme": ""}, {"place": None, "theme": "a"}, {"place": "v2", "theme": None}]
    column = embeddings.read_column(embedded, [*rows, *gaps], "theme")
    assert column == {"v0": "b", "v1": "b", "v3": "a"}


def test_a_column_of_numbers_is_aggregated_to_the_mean() -> None:
    embedded = clouds((3,))
    rows: list[Row] = [
        {"place": f"v{place}", "stars": stars} for place, stars in ((0, "5"), (0, "1.5"), (2, "2"), (2, "2"))
    ]
    column = embeddings.read_column(embedded, rows, "stars")
    assert column == {"v0": 3.25, "v2": 2.0}
    assert embeddings.read_column(embedded, rows, "stars:category") == {"v0": "5", "v2": "2"}
    mixed = [*rows, {"place": "v1", "stars": "four"}]
    assert embeddings.read_column(embedded, mixed, "stars") == {"v0": "5", "v1": "four", "v2": "2"}
    with pytest.raises(UserError, match="stars: expected numbers, got 'four'"):
        embeddings.read_column(embedded, [*rows, {"place": "v1", "stars": "four"}], "stars:number")


def test_numbers_are_read_in_their_notation() -> None:
    rows: list[Row] = [
        {"place": f"v{place}", "price": price} for place, price in ((0, "1.299"), (0, "5.000"), (1, "9,5"))
    ]
    column = embeddings.read_column(clouds((3,)), rows, "price:number=comma")
    assert column == {"v0": (1299 + 5000) / 2, "v1": 9.5}


def test_an_uninformative_column_is_an_error() -> None:
    embedded = clouds((3,))
    with pytest.raises(UserError, match="no column 'them'"):
        embeddings.read_column(embedded, [{"place": "v0", "theme": "a"}], "them")
    with pytest.raises(UserError, match="no row has theme and a value of place that the run knows"):
        embeddings.read_column(embedded, [{"place": "V0", "theme": "a"}], "theme")
    with pytest.raises(UserError, match="choose from category, number"):
        embeddings.read_column(embedded, [{"place": "v0", "theme": "a"}], "theme:text")
    with pytest.raises(UserError, match=r"expected a single value, got \[1, 2\]"):
        embeddings.read_column(embedded, [{"place": "v0", "theme": [1, 2]}], "theme")


def test_projection_preserves_distances_within_a_plane() -> None:
    """Points of a plane, rotated into five dimensions, keep their distances and have all of the variance."""
    random = np.random.default_rng(0)
    flat = random.normal(size=(20, 2)) * (3, 1)
    rotation, _ = np.linalg.qr(random.normal(size=(5, 5)))
    points, shares = embeddings.project_to_plane(flat @ rotation[:2] + 7)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > shares[1]
    for first, second in itertools.combinations(range(20), 2):
        assert math.dist(points[first], points[second]) == pytest.approx(math.dist(flat[first], flat[second]))
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-9)


def test_projection_has_the_largest_variances_and_fixed_signs() -> None:
    vectors = clouds().vectors
    points, shares = embeddings.project_to_plane(vectors)
    values = np.linalg.eigvalsh(np.cov(vectors.T))[::-1]
    np.testing.assert_allclose(points.var(0, ddof=1), values[:2])
    np.testing.assert_allclose(shares, values[:2] / values.sum())
    shuffled = np.random.default_rng(1).permutation(len(vectors))
    np.testing.assert_allclose(embeddings.project_to_plane(vectors[shuffled])[0], points[shuffled], atol=1e-9)
    np.testing.assert_allclose(embeddings.project_to_plane(vectors + 3)[0], points, atol=1e-9)
    axes = np.linalg.lstsq(vectors - vectors.mean(0), points, rcond=None)[0].T  # an axis a row
    assert all(axis[np.abs(axis).argmax()] > 0 for axis in axes)


def test_a_map_needs_three_values_and_two_dimensions() -> None:
    for shape in ((2, 4), (9, 1)):
        with pytest.raises(UserError, match="expected at least 3 embeddings of size 2 or more"):
            embeddings.project_to_plane(np.ones(shape))


def test_map_points_are_the_values_known_to_the_column() -> None:
    embedded = clouds((3, 3))
    points, _ = embeddings.project_to_plane(embedded.vectors)
    rows = embeddings.map_points(embedded, {"v0": "a", "v2": "b", "v3": "a", "v5": "a"})
    assert [row["value"] for row in rows] == ["v0", "v2", "v3", "v5"]
    assert [row["group"] for row in rows] == ["a", "b", "a", "a"]
    np.testing.assert_allclose([(row["x"], row["y"]) for row in rows], points[[0, 2, 3, 5]])
    numbers = {"v0": 1.0, "v1": 2.0, "v5": 6.0}
    assert [row["number"] for row in embeddings.map_points(embedded, numbers)] == [1, 2, 6]

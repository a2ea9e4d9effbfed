"""Maps and agreement of columns outside the model, against closed forms, loops and planted groups."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factorcell.errors import UserError
from factorcell.evaluation.explaining import embeddings
from factorcell.evaluation.explaining.embeddings import Embeddings, ValueColumn
from tests.evaluation.test_embeddings import clouds, groups_of

Row = dict[str, Any]


def test_a_column_of_names_is_aggregated_to_the_most_frequent() -> None:
    embedded = clouds((4,))
    names_of = {"v0": "a b b", "v1": "b", "v3": "a a b", "elsewhere": "c c c"}
    rows = [{"place": value, "theme": name} for value, names in names_of.items() for name in names.split()]
    gaps: list[Row] = [{"place": "v1", "theme": ""}, {"place": None, "theme": "a"}, {"place": "v2", "theme": None}]
    column = embeddings.read_column(embedded, [*rows, *gaps], "theme")
    assert column == ValueColumn("theme", ("b", "b", None, "a"))
    assert column.known_indices.tolist() == [0, 1, 3]


def test_a_column_of_numbers_is_aggregated_to_the_mean() -> None:
    embedded = clouds((3,))
    rows: list[Row] = [
        {"place": f"v{place}", "stars": stars} for place, stars in ((0, "5"), (0, "1.5"), (2, "2"), (2, "2"))
    ]
    column = embeddings.read_column(embedded, rows, "stars")
    assert column.numbers is not None
    np.testing.assert_array_equal(column.numbers, [3.25, math.nan, 2.0])
    assert column.known_indices.tolist() == [0, 2]
    assert embeddings.read_column(embedded, rows, "stars:category").names == ("5", None, "2")
    assert embeddings.read_column(embedded, [*rows, {"place": "v1", "stars": "four"}], "stars").names == (
        "5",
        "four",
        "2",
    )
    with pytest.raises(UserError, match="stars of 'v1' is 'four', not a number"):
        embeddings.read_column(embedded, [*rows, {"place": "v1", "stars": "four"}], "stars:number")


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
    rows = embeddings.map_points(embedded, ValueColumn("theme", ("a", None, "b", "a", None, "a")))
    assert [row["value"] for row in rows] == ["v0", "v2", "v3", "v5"]
    assert [row["group"] for row in rows] == ["a", "b", "a", "a"]
    np.testing.assert_allclose([(row["x"], row["y"]) for row in rows], points[[0, 2, 3, 5]])
    numbers = ValueColumn("stars", numbers=np.array([1.0, 2, math.nan, 4, 5, 6]))
    assert [row["number"] for row in embeddings.map_points(embedded, numbers)] == [1, 2, 4, 5, 6]


def test_an_ellipse_has_the_standard_deviations_of_its_group() -> None:
    """For points on the axes of a rotated cross, half axes, angle and centre have a closed form."""
    angle, far, near = math.radians(30), 4.0, 1.0
    along, across = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
    cross = [*(side * far * along for side in (-1, 1)), *(side * near * across for side in (-1, 1))]
    rows = [{"x": x + 10, "y": y - 5, "group": "a"} for x, y in cross]
    (ellipse,) = embeddings.fit_ellipses(rows)
    assert (ellipse["group"], ellipse["count"]) == ("a", 4)
    assert (ellipse["x"], ellipse["y"]) == pytest.approx((10, -5))
    assert ellipse["wide"] == pytest.approx(1.5 * math.sqrt(2 * far**2 / 3))
    assert ellipse["high"] == pytest.approx(1.5 * math.sqrt(2 * near**2 / 3))
    assert ellipse["angle"] == pytest.approx(30)


def test_an_ellipse_contains_the_expected_share_of_gaussian_points() -> None:
    """An ellipse of 1.5 standard deviations contains 1 - exp(-1.125) of a Gaussian in two dimensions."""
    cloud = np.random.default_rng(0).normal(size=(20000, 2)) @ np.array([[2.0, 0.3], [0.0, 0.5]])
    rows = [{"x": x, "y": y, "group": "a"} for x, y in cloud.tolist()]
    (ellipse,) = embeddings.fit_ellipses(rows)
    angle = math.radians(ellipse["angle"])
    local = (cloud - (ellipse["x"], ellipse["y"])) @ np.array(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    inside = ((local / (ellipse["wide"], ellipse["high"])) ** 2).sum(1) < 1
    assert inside.mean() == pytest.approx(1 - math.exp(-(1.5**2) / 2), abs=0.01)


def test_the_largest_groups_have_ellipses() -> None:
    rows = embeddings.map_points(clouds((4, 6, 2, 5)), groups_of((4, 6, 2, 5)))
    assert [row["group"] for row in embeddings.fit_ellipses(rows)] == [
        "g1",
        "g3",
        "g0",
    ]  # a group of two points has no ellipse
    assert [(row["group"], row["count"]) for row in embeddings.fit_ellipses(rows, 2)] == [("g1", 6), ("g3", 5)]
    with pytest.raises(UserError, match="groups is 0"):
        embeddings.fit_ellipses(rows, 0)


def test_agreement_equals_a_loop_over_values(monkeypatch: pytest.MonkeyPatch) -> None:
    embedded, names = clouds(apart=0.5), (*groups_of().names[:-3], None, None, "alone")
    row = embeddings.neighbour_agreement(embedded, ValueColumn("theme", names))
    indices = [place for place, name in enumerate(names) if name is not None]
    part = replace(embedded, values=tuple(embedded.values[p] for p in indices), vectors=embedded.vectors[indices])
    nearest = [part.neighbours([value], 1)[0]["near"] for value in part.values]
    same = [
        names[embedded.values.index(near)] == names[embedded.values.index(value)]
        for value, near in zip(part.values, nearest, strict=True)
    ]
    pairs = list(itertools.permutations(indices, 2))
    assert row["same"] == pytest.approx(sum(same) / len(same))
    assert 0.2 < row["same"] < 0.95, "some but not all neighbours must agree, or the test would be weak"
    assert row["chance"] == pytest.approx(sum(names[a] == names[b] for a, b in pairs) / len(pairs))
    assert (row["values"], row["groups"], row["measure"]) == (26, 4, "cosine")
    monkeypatch.setattr(embeddings, "MAX_PAIRS", 60)  # many blocks
    assert embeddings.neighbour_agreement(embedded, ValueColumn("theme", names)) == row


def test_agreement_of_numbers_is_the_correlation_with_the_neighbour() -> None:
    """On an arc the nearest neighbour has nearly the same number; random numbers are uncorrelated."""
    angles = np.linspace(0, 1.5, 40)
    arc = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    embedded = Embeddings("place", "place", tuple(map(str, range(40))), np.ones(40, dtype=np.int64), arc)
    row = embeddings.neighbour_agreement(embedded, ValueColumn("height", numbers=np.arange(40.0)))
    assert row["correlation"] > 0.99
    random = np.random.default_rng(0).normal(size=40)
    assert abs(embeddings.neighbour_agreement(embedded, ValueColumn("height", numbers=random))["correlation"]) < 0.5
    assert embeddings.neighbour_agreement(embedded, ValueColumn("height", numbers=np.ones(40)))["correlation"] == 0
    with pytest.raises(UserError, match="expected entries for at least 3 values, got 2"):
        embeddings.neighbour_agreement(clouds((3,)), ValueColumn("theme", ("a", "b", None)))

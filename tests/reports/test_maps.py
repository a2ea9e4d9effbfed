"""World maps: the projection matches its definition, the outlines match places, and the brightness the grid."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from numpy.typing import NDArray

from factorcell.reports import maps

LATITUDES = st.floats(-89.5, 89.5)
LONGITUDES = st.floats(maps.CENTRE - 179.5, maps.CENTRE + 179.5)

PLACES_ON_LAND = {
    "Paris": (48.86, 2.35),
    "Kansas": (38.5, -98.0),
    "Brasilia": (-15.8, -47.9),
    "Nairobi": (-1.3, 36.8),
    "Alice Springs": (-23.7, 133.9),
    "Novosibirsk": (55.0, 82.9),
    "Chukotka": (66.5, -172.5),
    "Alaska": (65.0, -155.0),
    "Hokkaido": (43.3, 142.5),
    "Tasmania": (-42.0, 146.6),
}
PLACES_AT_SEA = {
    "middle of the Pacific": (0.0, -150.0),
    "Atlantic": (30.0, -40.0),
    "Gulf of Guinea": (0.0, 0.0),
    "Indian Ocean": (-30.0, 80.0),
    "Caspian Sea": (42.0, 50.5),
    "Hudson Bay": (60.0, -85.0),
    "Date line": (-10.0, 180.0),
    "Mediterranean": (35.0, 18.0),
}


def on_land(lat: float, lon: float) -> bool:
    """Return whether a point is on land, by the even-odd rule over all rings."""
    point = ((lon + 169) % 360 - 169, lat)
    return sum(Path(ring).contains_point(point) for ring in maps.world()["land"]) % 2 == 1


def grid(lat: float, lon: float, width: float = 6.0, step: float = 4.0) -> dict[str, NDArray[np.float64]]:
    """Return a Gaussian posterior around a point on a coarse grid of the world."""
    lats, lons = np.arange(-60, 80, step), np.arange(-180, 180, step)
    east = (lons - lon + 180) % 360 - 180
    bell = np.exp(-((lats[:, None] - lat) ** 2 + east[None, :] ** 2) / (2 * width**2))
    return {"lat": lats, "lon": lons, "probability": bell / bell.sum()}


def pixels_of(figure: Figure) -> NDArray[np.float64]:
    """Return the pixels of a figure, (height, width, 3)."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(float)


def test_projection_of_known_points() -> None:
    assert np.allclose(maps.project(0.0, maps.CENTRE), 0)
    assert float(maps.project(90.0, 0.0)[1]) == pytest.approx(1.317363, abs=1e-5)  # the pole, in the paper's figure
    assert float(maps.project(0.0, maps.CENTRE + 180)[0]) == pytest.approx(2.706630, abs=1e-5)  # half the equator


@given(LATITUDES, LONGITUDES)
def test_projection_is_symmetric(lat: float, lon: float) -> None:
    x, y = maps.project(lat, lon)
    mirrored = maps.project(-lat, 2 * maps.CENTRE - lon)
    assert np.allclose(mirrored, (-x, -y), atol=1e-12)


@given(LATITUDES, LATITUDES, LONGITUDES, LONGITUDES)
def test_projection_rises_with_latitude_and_longitude(lat: float, other: float, lon: float, east: float) -> None:
    if other - lat > 1e-6:
        assert maps.project(other, lon)[1] > maps.project(lat, lon)[1]
    if east - lon > 1e-6:
        assert maps.project(lat, east)[0] > maps.project(lat, lon)[0]


@given(st.floats(-80, 80), LONGITUDES)
def test_projection_keeps_areas(lat: float, lon: float) -> None:
    """The determinant of the derivatives, by finite differences, is cos(lat) everywhere."""
    h = 1e-4
    dx_lat, dy_lat = np.subtract(maps.project(lat + h, lon), maps.project(lat - h, lon)) / math.radians(2 * h)
    dx_lon, dy_lon = np.subtract(maps.project(lat, lon + h), maps.project(lat, lon - h)) / math.radians(2 * h)
    assert dx_lon * dy_lat - dx_lat * dy_lon == pytest.approx(math.cos(math.radians(lat)), abs=1e-5)


@pytest.mark.parametrize("place", PLACES_ON_LAND)
def test_places_on_land_are_inside_the_outlines(place: str) -> None:
    assert on_land(*PLACES_ON_LAND[place])


@pytest.mark.parametrize("place", PLACES_AT_SEA)
def test_places_at_sea_are_outside_the_outlines(place: str) -> None:
    assert not on_land(*PLACES_AT_SEA[place])


def test_outlines_have_few_points_in_range() -> None:
    shapes = maps.world()
    points = np.concatenate([*shapes["land"], *shapes["borders"]])
    assert len(points) < 20_000
    assert points[:, 0].min() >= -169
    assert points[:, 0].max() <= 191
    assert points[:, 1].min() >= -60
    assert points[:, 1].max() <= 84
    steps = [np.abs(np.diff(line[:, 0])).max() for line in shapes["borders"]]
    assert max(steps) < 60  # no line crosses the whole map


def test_land_covers_its_share_of_the_earth() -> None:
    """Land without Antarctica is 26.5 % of the sphere, also after simplification."""
    x, y = np.concatenate([np.stack(maps.project(r[:, 1], r[:, 0])) for r in maps.world()["land"]], axis=1)
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    total = 0.0
    for ring in maps.world()["land"]:
        x, y = maps.project(ring[:, 1], ring[:, 0])
        total += (np.roll(x, -1) * y - x * np.roll(y, -1)).sum() / 2  # holes have the opposite orientation
    assert abs(total) / (4 * math.pi) == pytest.approx(0.265, abs=0.008)


@pytest.mark.parametrize(("lat", "lon"), [(36.0, 140.0), (-12.0, -76.0), (64.0, -176.0), (48.0, 0.0)])
def test_the_ring_and_the_brightest_point_are_at_the_maximum(lat: float, lon: float) -> None:
    figure = maps.world_map(grid(lat, lon), "Name", true=(lat, lon + 3))
    axes = figure.axes[0]
    ring, cross = (line for line in axes.lines if isinstance(line, Line2D) and line.get_marker() in ("o", "+"))
    x, y = maps.project(lat, (lon + 169) % 360 - 169)
    assert np.allclose(np.asarray(ring.get_xydata()), [[x, y]])
    assert float(np.asarray(cross.get_xdata())[0]) != pytest.approx(float(x))
    assert brightness(figure, lat, float(maps.CENTRE + (lon - maps.CENTRE + 180) % 360 - 180)) > 4 * np.median(
        pixels_of(figure).sum(axis=2)
    )


@pytest.mark.parametrize("title", ["Ų", "Llanfairpwllgwyngyll", "Xã Đắk Ệp Nà Phát"])
def test_the_title_does_not_cover_south_america(title: str) -> None:
    figure = maps.world_map(grid(0, 20, step=20.0), title)
    pixels_of(figure)
    box = next(text for text in figure.axes[0].texts if text.get_text()).get_window_extent()
    width, height = figure.get_size_inches() * figure.dpi
    assert box.x0 > 0
    assert box.x1 < 0.3 * width
    assert 0 < box.y0 < box.y1 < 0.5 * height


def brightness(figure: Figure, lat: float, lon: float) -> float:
    """Return the mean brightness around a point of the map."""
    pixels = pixels_of(figure).sum(axis=2)
    column, row = figure.axes[0].transData.transform(np.ravel(maps.project(lat, lon)))
    y, x = int(pixels.shape[0] - row), int(column)
    return float(pixels[y - 3 : y + 4, x - 3 : x + 4].mean())


def test_a_posterior_of_zeros_is_a_dark_map() -> None:
    content = grid(0, 20, step=20.0)
    assert pixels_of(maps.world_map({**content, "probability": 0 * content["probability"]}, "")).mean() < 80


def test_the_posterior_is_periodic_in_longitude() -> None:
    figure = maps.world_map(grid(67, 180), "")  # the grid ends at 176 degrees, the map at -169
    assert brightness(figure, 67, 178) == pytest.approx(brightness(figure, 67, 182), rel=0.2)
    assert brightness(figure, 67, 178) > 4 * brightness(figure, 67, 120)


def test_nan_points_are_dark_and_do_not_dim_their_neighbours() -> None:
    lats, lons = np.arange(-56.0, 76, 4), np.arange(-180.0, 180, 4)
    probability = [[1.0 if 0 <= x < 60 else math.nan for x in lons] for _ in lats]
    content = {"lat": lats, "lon": lons, "probability": probability}
    figure = maps.world_map(content, "")
    assert brightness(figure, 22, 24) == pytest.approx(brightness(figure, 22, 1), abs=30)  # in Libya, and at the edge
    assert brightness(figure, 55, 90) < 0.3 * brightness(figure, 22, 24)
    assert maps.best_point(content)[1] == 0

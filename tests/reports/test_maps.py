"""Maps: the projection against its definition, the outlines against places, the light against its grid."""

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
    """Even-odd rule over all rings."""
    point = ((lon + 169) % 360 - 169, lat)
    return sum(Path(ring).contains_point(point) for ring in maps.world()["land"]) % 2 == 1


def grid(lat: float, lon: float, width: float = 6.0, step: float = 4.0) -> dict[str, NDArray[np.float64]]:
    """A bell around a point on a coarse grid of the world."""
    lats, lons = np.arange(-60, 80, step), np.arange(-180, 180, step)
    east = (lons - lon + 180) % 360 - 180
    bell = np.exp(-((lats[:, None] - lat) ** 2 + east[None, :] ** 2) / (2 * width**2))
    return {"lat": lats, "lon": lons, "probability": bell / bell.sum()}


def pixels_of(figure: Figure) -> NDArray[np.float64]:
    """The figure drawn: (height, width, 3)."""
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


@given(LATITUDES, LONGITUDES)
def test_unproject_is_the_inverse(lat: float, lon: float) -> None:
    assert np.allclose(maps.unproject(*maps.project(lat, lon)), (lat, lon), atol=1e-6)


@given(LATITUDES, LATITUDES, LONGITUDES, LONGITUDES)
def test_projection_rises_with_latitude_and_longitude(lat: float, other: float, lon: float, east: float) -> None:
    if other - lat > 1e-6:
        assert maps.project(other, lon)[1] > maps.project(lat, lon)[1]
    if east - lon > 1e-6:
        assert maps.project(lat, east)[0] > maps.project(lat, lon)[0]


@given(st.floats(-80, 80), LONGITUDES)
def test_projection_keeps_areas(lat: float, lon: float) -> None:
    """The determinant of its derivatives, by finite differences, is cos(lat) everywhere."""
    h = 1e-4
    dx_lat, dy_lat = np.subtract(maps.project(lat + h, lon), maps.project(lat - h, lon)) / math.radians(2 * h)
    dx_lon, dy_lon = np.subtract(maps.project(lat, lon + h), maps.project(lat, lon - h)) / math.radians(2 * h)
    assert dx_lon * dy_lat - dx_lat * dy_lon == pytest.approx(math.cos(math.radians(lat)), abs=1e-5)


def test_points_beside_the_globe_have_no_place() -> None:
    lat, lon = maps.unproject([2.8, 2.6, 0.0], [0.0, 1.2, 1.4])
    assert np.isnan(lat).all()
    assert np.isnan(lon).all()


@pytest.mark.parametrize("place", PLACES_ON_LAND)
def test_places_on_land(place: str) -> None:
    assert on_land(*PLACES_ON_LAND[place])


@pytest.mark.parametrize("place", PLACES_AT_SEA)
def test_places_at_sea(place: str) -> None:
    assert not on_land(*PLACES_AT_SEA[place])


def test_outlines_are_small_and_in_range() -> None:
    shapes = maps.world()
    points = np.concatenate([*shapes["land"], *shapes["borders"]])
    assert len(points) < 20_000
    assert points[:, 0].min() >= -169
    assert points[:, 0].max() <= 191
    assert points[:, 1].min() >= -60
    assert points[:, 1].max() <= 84
    steps = [np.abs(np.diff(line[:, 0])).max() for line in shapes["borders"]]
    assert max(steps) < 60  # no line runs round the back of the map


def test_land_covers_its_share_of_the_earth() -> None:
    """Without Antarctica land is 26.5 % of the sphere; simplifying must not change that."""
    x, y = np.concatenate([np.stack(maps.project(r[:, 1], r[:, 0])) for r in maps.world()["land"]], axis=1)
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    total = 0.0
    for ring in maps.world()["land"]:
        x, y = maps.project(ring[:, 1], ring[:, 0])
        total += (np.roll(x, -1) * y - x * np.roll(y, -1)).sum() / 2  # holes turn the other way
    assert abs(total) / (4 * math.pi) == pytest.approx(0.265, abs=0.008)


def test_smooth_keeps_planes_and_mass() -> None:
    """Cubic B-splines reproduce a constant and a slope, and spread but keep what there is."""
    lats, lons = np.arange(-40, 41, 4.0), np.arange(-60, 61, 4.0)
    plane = 2 + lats[:, None] / 40 + lons[None, :] / 120
    lat, lon = np.meshgrid(np.linspace(-30, 30, 13), np.linspace(-50, 50, 17), indexing="ij")
    result = maps.smooth({"lat": lats, "lon": lons, "probability": plane}, lat, lon)
    assert np.allclose(result, 2 + lat / 40 + lon / 120)
    fine_lat, fine_lon = np.meshgrid(np.arange(-56.0, 56), np.arange(-76.0, 76), indexing="ij")
    spike = np.zeros_like(plane)
    spike[0, 0] = 1.0  # at the corner: what spreads beyond the grid is kept too
    mass = maps.smooth({"lat": lats, "lon": lons, "probability": spike}, fine_lat, fine_lon).sum()
    assert mass == pytest.approx(16.0)  # one for each point of a grid as coarse as the given one


def test_smooth_joins_the_seam_and_ignores_order() -> None:
    bell = grid(10, 180)
    lat, lon = np.full(3, 10.0), np.array([178.0, 180.0, -178.0])
    values = maps.smooth(bell, lat, lon)
    assert values[0] == pytest.approx(values[2])
    assert values[1] > values[0] > 0.8 * values[1]
    turned = {
        "lat": bell["lat"][::-1],
        "lon": bell["lon"][::-1],
        "probability": bell["probability"][::-1, ::-1],
    }
    assert np.allclose(maps.smooth(turned, lat, lon), values)
    assert np.allclose(maps.smooth(bell, lat, lon + 360), values)


def test_smooth_is_zero_beyond_a_grid_of_a_region() -> None:
    region = {"lat": np.arange(40, 60, 2.0), "lon": np.arange(-10, 30, 2.0), "probability": np.ones((10, 20))}
    outside = maps.smooth(region, np.array([20.0, 50.0, 50.0, -80.0]), np.array([10.0, 50.0, -100.0, 10.0]))
    assert not outside.any()
    assert maps.smooth(region, np.array([50.0]), np.array([10.0]))[0] == pytest.approx(1)


def test_rows_become_a_grid() -> None:
    rows = [{"lat": 10, "lon": 20, "probability": 0.25}, {"lat": -5, "lon": 30, "probability": 0.75}]
    result = maps.grid_of(rows)
    assert result["lat"].tolist() == [-5, 10]
    assert result["lon"].tolist() == [20, 30]
    assert result["probability"].tolist() == [[0, 0.75], [0.25, 0]]


@pytest.mark.parametrize(("lat", "lon"), [(36.0, 140.0), (-12.0, -76.0), (64.0, -176.0), (48.0, 0.0)])
def test_the_ring_and_the_light_are_where_the_grid_peaks(lat: float, lon: float) -> None:
    figure = maps.world_map(grid(lat, lon), "Name", true=(lat, lon + 3))
    axes = figure.axes[0]
    ring, cross = (line for line in axes.lines if isinstance(line, Line2D) and line.get_marker() in ("o", "+"))
    x, y = maps.project(lat, (lon + 169) % 360 - 169)
    assert np.allclose(np.asarray(ring.get_xydata()), [[x, y]])
    assert float(np.asarray(cross.get_xdata())[0]) != pytest.approx(float(x))
    pixels = pixels_of(figure).sum(axis=2)
    column, row = axes.transData.transform((float(x), float(y)))
    near = pixels[int(pixels.shape[0] - row) - 3 : int(pixels.shape[0] - row) + 4, int(column) - 3 : int(column) + 4]
    assert near.mean() > 4 * np.median(pixels)


def test_a_map_of_rows_and_of_their_grid_are_alike() -> None:
    table = grid(0, 20, step=20.0)
    rows = [
        {"lat": lat, "lon": lon, "probability": table["probability"][i, j]}
        for i, lat in enumerate(table["lat"])
        for j, lon in enumerate(table["lon"])
    ]
    first, second = (pixels_of(maps.world_map(content, "A", width=4)) for content in (table, rows))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("title", ["Ų", "Santa Rosa de la Vega", "Llanfairpwllgwyngyll", "Xã Đắk Ệp Nà Phát"])
def test_a_title_stays_west_of_chile(title: str) -> None:
    figure = maps.world_map(grid(0, 20, step=20.0), title)
    pixels_of(figure)
    box = next(text for text in figure.axes[0].texts if text.get_text()).get_window_extent()
    width, height = figure.get_size_inches() * figure.dpi
    assert box.x0 > 0
    assert box.x1 < 0.3 * width
    assert 0 < box.y0 < box.y1 < 0.5 * height


def test_a_posterior_of_zeros_is_a_dark_map() -> None:
    empty = {"lat": [0.0, 10.0], "lon": [0.0, 10.0], "probability": [[0.0, 0.0], [0.0, 0.0]]}
    assert pixels_of(maps.world_map(empty, width=4)).mean() < 80


@pytest.mark.parametrize("missing", [None, math.nan])
def test_points_not_asked_about_neither_shine_nor_dim_their_neighbours(missing: float | None) -> None:
    """A posterior that is flat where it is known is drawn flat up to the edge of what is known."""
    lats, lons = np.arange(-56.0, 76, 4), np.arange(-180.0, 180, 4)
    known = [[1.0 if 0 <= x < 60 else missing for x in lons] for _ in lats]
    image = pixels_of(maps.world_map({"lat": lats, "lon": lons, "probability": known}, width=4))
    axes = maps.world_map({"lat": lats, "lon": lons, "probability": known}, width=4).axes[0]

    def brightness(lat: float, lon: float) -> float:
        column, row = axes.transData.transform(np.ravel(maps.project(lat, lon)))
        return float(image[int(image.shape[0] - row), int(column)].sum())

    assert brightness(22, 24) == pytest.approx(brightness(22, -1), abs=30)  # in Libya, and in the Sahara at the edge
    assert brightness(55, 90) < 0.3 * brightness(22, 24)
    best = maps.best_point({"lat": lats, "lon": lons, "probability": known})
    assert best[1] == 0

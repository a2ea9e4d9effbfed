"""World maps of the posterior probability of places given a text.

Equal Earth projection (Savric, Patterson and Jenny 2018), with sin(t) = sqrt(3)/2 sin(lat):

    x = 2 sqrt(3) lon cos(t) / (3 p'(t)),    y = p(t),    p(t) = A1 t + A2 t^3 + A3 t^7 + A4 t^9

Here lat and lon are a latitude and a longitude in radians, t is an auxiliary angle, p' is the derivative of the
polynomial p, and A1 to A4 are constants.

Shapes: a grid has n latitudes and m longitudes, an image has h rows and w columns.
"""

import json
import math
import textwrap
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

Row = Mapping[str, Any]
Array = NDArray[np.float64]

SEA, LAND, COAST, BORDER, GRATICULE = "#0a111e", "#18253a", "#6b84a8", "#33465f", "#111b2c"
GLOW = LinearSegmentedColormap.from_list(
    "glow", ["#3b1f66", "#7a2a7c", "#bf3b67", "#ee6a45", "#fbad48", "#fdeeb0", "#ffffff"]
)
FONTS = ["STIXGeneral", "DejaVu Serif"]
CENTRE = 11.0  # longitude of the central meridian in degrees, chosen so that the map is cut in the Bering Strait
SOUTH, NORTH = -57.0, 83.5  # latitudes of the edges of the map, which excludes Antarctica
WIDTH = 9.0  # inches
# The constants A1 to A4 of the projection.
_A = (1.340264, -0.081106, 0.000893, 0.003796)


def project(lat: Any, lon: Any) -> tuple[Array, Array]:
    """Project degrees to Equal Earth x, y (radius 1), where x is 0 at `CENTRE`; longitudes are not wrapped."""
    t = np.arcsin(math.sqrt(3) / 2 * np.sin(np.radians(np.asarray(lat, dtype=float))))
    a, b, c, d = _A
    slope = a + 3 * b * t**2 + 7 * c * t**6 + 9 * d * t**8
    turn = np.radians(np.asarray(lon, dtype=float) - CENTRE)
    return np.asarray(2 * math.sqrt(3) / 3 * turn * np.cos(t) / slope), t * (a + b * t**2 + c * t**6 + d * t**8)


def world() -> dict[str, list[Array]]:
    """Return Natural Earth's `land` rings and country `borders`: arrays (points, 2) of lon (-169 to 191) and lat."""
    content = json.loads((resources.files("factorcell") / "assets" / "world.json").read_text(encoding="utf-8"))
    return {
        key: [np.array(line, dtype=float).reshape(-1, 2) / 10 for line in content[key]] for key in ("land", "borders")
    }


def best_point(grid: Row) -> tuple[float, float]:
    """Return the latitude and longitude of the most probable point of a grid."""
    probability = np.asarray(grid["probability"], dtype=float)
    i, j = np.unravel_index(int(np.nanargmax(probability)), probability.shape)
    return float(grid["lat"][i]), float(grid["lon"][j])


def world_map(grid: Row, title: str, true: tuple[float, float] | None = None) -> Figure:
    """Draw a posterior over coordinates as brightness, with a ring at its maximum and a cross at the point `true`.

    `grid`: `lat` (n,), `lon` (m,), `probability` (n, m), NaN where a point is not part of the posterior. Brightness
    is the square root of the probability, relative to the maximum of the map, and is dimmed at sea.
    """
    edge = 0.965 * float(project(0.0, CENTRE + 180)[0])  # leaves out most of the Pacific
    south, north = float(project(SOUTH, CENTRE)[1]), float(project(NORTH, CENTRE)[1]) + 0.05
    figure = Figure(figsize=(WIDTH, round(WIDTH * (north - south) / (2 * edge), 1)), facecolor=SEA)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-edge, edge), ylim=(south, north))
    axes.set_axis_off()
    _draw_light(axes, grid, _draw_land(axes))
    lat, lon = best_point(grid)
    axes.plot(*project(lat, _wrap(lon)), "o", ms=15, mfc="none", mec="white", mew=1.3, zorder=8)
    if true is not None:
        axes.plot(*project(true[0], _wrap(true[1])), "+", ms=10, color="#7fe3ff", mew=1.5, zorder=9)
    lines = textwrap.wrap(title, 15, break_long_words=False)
    size = min(28.0, 345 / max(map(len, lines), default=1))  # the title must not cover South America
    label: Any = {"transform": axes.transAxes, "family": FONTS, "style": "italic", "parse_math": False}
    axes.text(0.033, 0.14, "\n".join(lines), color="white", fontsize=size, linespacing=1.0, zorder=10, **label)
    return figure


def _wrap(lon: Any) -> Any:
    """Return an equal longitude within 180 degrees of `CENTRE`."""
    return (lon - CENTRE + 180) % 360 - 180 + CENTRE


def _draw_land(axes: Axes) -> Path:
    """Draw graticule, land, borders and coast; return the outline of the land."""
    graticule = [np.stack(project(np.full(2, lat), [-169, 191]), axis=1) for lat in range(-60, 90, 30)]
    lats = np.linspace(-85, 85, 60)
    graticule += [np.stack(project(lats, np.full(60, lon)), axis=1) for lon in range(-150, 190, 30)]
    axes.add_collection(LineCollection(graticule, colors=GRATICULE, linewidths=0.8, zorder=1))
    shapes = world()
    rings, coast = [], []
    for ring in shapes["land"]:
        points = np.stack(project(ring[:, 1], ring[:, 0]), axis=1)
        closed = np.vstack([points, points[:1]])
        rings.append(Path(closed, closed=True))
        ends = np.isin(ring[:, 0], (-169.0, 191.0))  # there is no coast where the map is cut
        cut = np.flatnonzero(ends & np.roll(ends, -1))
        coast += [part for part in np.split(closed, cut + 1) if len(part) > 1]
    outline = Path.make_compound_path(*rings)
    axes.add_patch(PathPatch(outline, facecolor=LAND, lw=0, zorder=2))
    borders = [np.stack(project(line[:, 1], line[:, 0]), axis=1) for line in shapes["borders"]]
    axes.add_collection(LineCollection(borders, colors=BORDER, linewidths=0.5, zorder=3))
    axes.add_collection(LineCollection(coast, colors=COAST, linewidths=0.55, alpha=0.75, zorder=6))
    return outline


def _draw_light(axes: Axes, grid: Row, land: Path) -> None:
    """Draw the smoothed posterior: full on land, dimmed at sea and far from the points of the posterior."""
    x = np.linspace(*axes.get_xlim(), 900)
    lats = np.linspace(SOUTH - 1, NORTH + 5, 1000)
    y = np.linspace(*axes.get_ylim(), round(900 * np.diff(axes.get_ylim())[0] / np.diff(axes.get_xlim())[0]))
    lat = np.interp(y, project(lats, CENTRE)[1], lats)  # y does not depend on the longitude, and x is linear in it
    lon = CENTRE + x[None, :] / project(lat, CENTRE + 1)[0][:, None]
    probability = np.asarray(grid["probability"], dtype=float)
    # `weight` is 1 where all near grid points have a probability, and 0 where none has one.
    weight = _interpolate(grid, np.isfinite(probability).astype(float), lat, lon) * (abs(lon - CENTRE) <= 180)
    # Division by the weight gives a mean over the points that have a probability.
    values = _interpolate(grid, np.nan_to_num(probability), lat, lon)
    values = np.maximum(values, 0.0) * (weight > 0) / np.maximum(weight, 0.2)
    bright = np.sqrt(values / (values.max() or 1.0))
    rise = np.clip(bright / 0.32, 0, 1)  # the opacity rises smoothly from 0 to 0.94
    image = GLOW(bright)
    image[..., 3] = 0.94 * rise**2 * (3 - 2 * rise)
    extent = (*axes.get_xlim(), *axes.get_ylim())
    options: dict[str, Any] = {"extent": extent, "origin": "lower", "interpolation": "bilinear", "aspect": "auto"}
    axes.imshow(image, zorder=4, **options).set_clip_path(PathPatch(land, transform=axes.transData))
    image[..., 3] *= 0.4 * np.clip(1.5 * weight, 0, 1)
    axes.imshow(image, zorder=1.5, **options)


def _interpolate(grid: Row, values: Array, lat: Array, lon: Array) -> Array:
    """Smooth `values` (n, m) of a grid and interpolate them at `lat` (h,) and `lon` (h, w).

    The result (h, w) is zero north and south of the grid.
    """
    for axis in (0, 1):
        values = np.apply_along_axis(np.convolve, axis, values, (1 / 6, 4 / 6, 1 / 6), "same")
    rows = np.stack([np.interp(lat, grid["lat"], column, left=0, right=0) for column in values.T], axis=1)
    return np.stack([np.interp(east, grid["lon"], row, period=360) for east, row in zip(lon, rows, strict=True)])

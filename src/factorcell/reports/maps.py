"""World maps of the posterior probability of places given a text, in the Equal Earth projection.

Savric, Patterson and Jenny (2018): x = 2 sqrt(3) lon cos(t) / (3 p'(t)) and y = p(t) with sin(t) = sqrt(3)/2 sin(lat)
and p(t) = A1 t + A2 t^3 + A3 t^7 + A4 t^9. A grid has n latitudes and m longitudes.
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
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, zoom

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
ZOOM = 5  # points of the drawn light for each point of a grid
A1, A2, A3, A4 = 1.340264, -0.081106, 0.000893, 0.003796  # the constants of the projection


def project(lat: Any, lon: Any) -> tuple[Array, Array]:
    """Project degrees to Equal Earth x and y (radius 1); x is 0 at `CENTRE`, and longitudes are not wrapped."""
    t = np.arcsin(math.sqrt(3) / 2 * np.sin(np.radians(np.asarray(lat, dtype=float))))
    y = t * (A1 + A2 * t**2 + A3 * t**6 + A4 * t**8)
    y_derivative = A1 + 3 * A2 * t**2 + 7 * A3 * t**6 + 9 * A4 * t**8  # with respect to t
    lon_from_centre = np.radians(np.asarray(lon, dtype=float) - CENTRE)
    x = 2 * math.sqrt(3) / 3 * lon_from_centre * np.cos(t) / y_derivative
    return np.asarray(x), y


def world() -> dict[str, list[Array]]:
    """Return the outlines of Natural Earth, `land` and `borders`, as arrays (points, 2) of longitude and latitude."""
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

    The `grid` has `lat` (n,), `lon` (m,) and `probability` (n, m), which is NaN where a point is not part of the
    posterior. The brightness is the square root of the probability relative to the maximum of the map; it is dimmed at
    sea. `true` is a latitude and a longitude.
    """
    equator_end, _ = project(0.0, CENTRE + 180)
    right = 0.965 * float(equator_end)  # leaves out most of the Pacific
    (_, bottom_y), (_, top_y) = project(SOUTH, CENTRE), project(NORTH, CENTRE)
    bottom, top = float(bottom_y), float(top_y) + 0.05
    figure = Figure(figsize=(WIDTH, round(WIDTH * (top - bottom) / (2 * right), 1)), facecolor=SEA)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-right, right), ylim=(bottom, top))
    axes.set_axis_off()
    _draw_light(axes, grid, _draw_land(axes))
    lat, lon = best_point(grid)
    axes.plot(*project(lat, _wrap(lon)), "o", ms=15, mfc="none", mec="white", mew=1.3, zorder=8)
    if true is not None:
        true_lat, true_lon = true
        axes.plot(*project(true_lat, _wrap(true_lon)), "+", ms=10, color="#7fe3ff", mew=1.5, zorder=9)
    lines = textwrap.wrap(title, 15, break_long_words=False)
    font_size = min(28.0, 345 / max(map(len, lines), default=1))  # the title must not cover South America
    text_style: Any = {"transform": axes.transAxes, "family": FONTS, "style": "italic", "parse_math": False}
    axes.text(
        0.033, 0.14, "\n".join(lines), color="white", fontsize=font_size, linespacing=1.0, zorder=10, **text_style
    )
    return figure


def _wrap(lon: Any) -> Any:
    """Return the longitude of the same meridian within 180 degrees of `CENTRE`."""
    return (lon - CENTRE + 180) % 360 - 180 + CENTRE


def _draw_land(axes: Axes) -> Path:
    graticule = [np.stack(project(np.full(2, lat), [-169, 191]), axis=1) for lat in range(-60, 90, 30)]
    lats = np.linspace(-85, 85, 60)
    graticule += [np.stack(project(lats, np.full(60, lon)), axis=1) for lon in range(-150, 190, 30)]
    axes.add_collection(LineCollection(graticule, colors=GRATICULE, linewidths=0.8, zorder=1))
    shapes = world()
    rings = [np.stack(project(ring[:, 1], ring[:, 0]), axis=1) for ring in shapes["land"]]
    outline = Path.make_compound_path(*(Path([*ring, ring[0]], closed=True) for ring in rings))
    axes.add_patch(PathPatch(outline, facecolor=LAND, lw=0, zorder=2))
    axes.add_patch(PathPatch(outline, fill=False, edgecolor=COAST, lw=0.55, alpha=0.75, zorder=6))
    borders = [np.stack(project(line[:, 1], line[:, 0]), axis=1) for line in shapes["borders"]]
    axes.add_collection(LineCollection(borders, colors=BORDER, linewidths=0.5, zorder=3))
    return outline


def _draw_light(axes: Axes, grid: Row, land: Path) -> None:
    lat, lon = np.asarray(grid["lat"], dtype=float), _wrap(np.asarray(grid["lon"], dtype=float))
    order = np.argsort(lon)
    order = np.concatenate([order[-1:], order, order[:1]])  # the grid continues at both edges of the map
    lon = lon[order] + [-360, *[0] * len(lon), 360]
    probability = np.asarray(grid["probability"], dtype=float)[:, order]
    # The smoothed probability is a mean over the near points that have one.
    weight = gaussian_filter(np.isfinite(probability).astype(float), 0.6)
    values = gaussian_filter(np.nan_to_num(probability), 0.6) / np.maximum(weight, 0.2)
    lat, lon, values = zoom(lat, ZOOM, order=1), zoom(lon, ZOOM, order=1), zoom(values, ZOOM, order=1)
    x, y = project(lat[:, None], np.clip(lon, CENTRE - 180, CENTRE + 180))
    brightness = np.sqrt(values / (values.max() or 1.0))
    rise = np.clip(brightness / 0.32, 0, 1)
    opacity = 0.94 * rise**2 * (3 - 2 * rise)  # rises smoothly from 0 to 0.94
    for background, zorder, share in ((LAND, 2.5, 1.0), (SEA, 0.5, 0.4)):
        alpha = share * opacity[..., None]
        image = (1 - alpha) * np.array(to_rgb(background)) + alpha * GLOW(brightness)[..., :3]
        mesh = axes.pcolormesh(x, np.broadcast_to(y, x.shape), image, shading="nearest", zorder=zorder)
        if background == LAND:
            mesh.set_clip_path(PathPatch(land, transform=axes.transData))

"""World maps of where a model believes a text belongs.

Equal Earth projection (Savric, Patterson and Jenny 2018), with sin(t) = sqrt(3)/2 sin(lat):

    x = 2 sqrt(3) lon cos(t) / (3 p'(t)),    y = p(t),    p(t) = A1 t + A2 t^3 + A3 t^7 + A4 t^9

Shapes: n latitudes, m longitudes of a grid.
"""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
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
CENTRE = 11.0  # the meridian in the middle: the map is then cut in the Bering Strait
SOUTH, NORTH = -57.0, 83.5
_A = (1.340264, -0.081106, 0.000893, 0.003796)


def project(lat: Any, lon: Any) -> tuple[Array, Array]:
    """Degrees to Equal Earth x, y (radius 1); x is 0 at the meridian `CENTRE`, longitudes are not wrapped."""
    t = np.arcsin(math.sqrt(3) / 2 * np.sin(np.radians(np.asarray(lat, dtype=float))))
    height, slope = _polynomial(t)
    turn = np.radians(np.asarray(lon, dtype=float) - CENTRE)
    return np.asarray(2 * math.sqrt(3) / 3 * turn * np.cos(t) / slope), height


def unproject(x: Any, y: Any) -> tuple[Array, Array]:
    """Equal Earth x, y to degrees lat, lon: the inverse of `project`, NaN outside the globe."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    t = y / _A[0]
    for _ in range(8):  # Newton; 4 steps already reach rounding error
        height, slope = _polynomial(t)
        t = t - (height - y) / slope
    sine = 2 / math.sqrt(3) * np.sin(t)
    turn = np.degrees(x * 3 * _polynomial(t)[1] / (2 * math.sqrt(3) * np.cos(t)))
    valid = (np.abs(sine) <= 1) & (np.abs(turn) <= 180)
    lat = np.degrees(np.arcsin(np.where(valid, sine, 0.0)))
    return np.where(valid, lat, np.nan), np.where(valid, turn + CENTRE, np.nan)


def _polynomial(t: Array) -> tuple[Array, Array]:
    """p(t) and p'(t)."""
    a, b, c, d = _A
    return t * (a + b * t**2 + c * t**6 + d * t**8), a + 3 * b * t**2 + 7 * c * t**6 + 9 * d * t**8


def world() -> dict[str, list[Array]]:
    """Natural Earth's `land` rings and country `borders`: (points, 2) lon, lat in degrees, lon -169 to 191."""
    content = json.loads((resources.files("factorcell") / "assets" / "world.json").read_text(encoding="utf-8"))
    return {
        key: [np.array(line, dtype=float).reshape(-1, 2) / 10 for line in content[key]] for key in ("land", "borders")
    }


def grid_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows of lat, lon, probability as `lat` (n,), `lon` (m,), `probability` (n, m); zero where no row is."""
    lat, i = np.unique([float(row["lat"]) for row in rows], return_inverse=True)
    lon, j = np.unique([float(row["lon"]) for row in rows], return_inverse=True)
    probability = np.zeros((len(lat), len(lon)))
    probability[i, j] = [float(row["probability"]) for row in rows]
    return {"lat": lat, "lon": lon, "probability": probability}


def best_point(grid: Row) -> tuple[float, float]:
    """Latitude and longitude of the most probable point."""
    probability = np.asarray(grid["probability"], dtype=float)
    i, j = np.unravel_index(int(np.nan_to_num(probability, nan=-1.0).argmax()), probability.shape)
    return float(grid["lat"][i]), float(grid["lon"][j])


def _step(axis: Array) -> float:
    return float(np.median(np.diff(axis))) if len(axis) > 1 else 1.0


def smooth(grid: Row, lat: Array, lon: Array) -> Array:
    """The grid's values at points `lat`, `lon`, by cubic B-splines (never negative); zero beyond the grid.

    A grid that goes round the earth is joined at its seam.
    """
    rows, columns = np.asarray(grid["lat"], dtype=float), np.asarray(grid["lon"], dtype=float)
    values = np.asarray(grid["probability"], dtype=float)[np.argsort(rows)][:, np.argsort(columns)]
    rows, columns = np.sort(rows), np.sort(columns)
    round_earth = columns[-1] - columns[0] + 1.5 * _step(columns) > 360
    pad = 3
    values = np.pad(values, ((pad, pad), (pad, pad)))
    if round_earth:
        values[:, :pad], values[:, -pad:] = values[:, -2 * pad : -pad], values[:, pad : 2 * pad]
    slack = (360 - columns[-1] + columns[0]) / 2
    east = (lon - columns[0] + slack) % 360 - slack
    i = pad + _index(rows, lat)
    j = pad + _index(columns - columns[0], east)
    result = np.zeros(np.shape(lat))
    inside = np.isfinite(i) & np.isfinite(j) & (i > 1) & (j > 1) & (i < len(values) - 2) & (j < values.shape[1] - 2)
    i, j = i[inside], j[inside]
    top, left = np.floor(i).astype(int), np.floor(j).astype(int)
    down, across = _spline(i - top), _spline(j - left)
    result[inside] = sum(down[a] * across[b] * values[top - 1 + a, left - 1 + b] for a in range(4) for b in range(4))
    return result


def _index(axis: Array, where: Array) -> Array:
    """Fractional positions of `where` on a rising axis, continued beyond both ends."""
    if len(axis) == 1:
        return np.asarray(where - axis[0])
    place = np.interp(where, axis, np.arange(len(axis)))
    before = (where - axis[0]) / (axis[1] - axis[0])
    after = len(axis) - 1 + (where - axis[-1]) / (axis[-1] - axis[-2])
    return np.asarray(np.where(where < axis[0], before, np.where(where > axis[-1], after, place)))


def _spline(u: Array) -> tuple[Array, Array, Array, Array]:
    """Weights of the four neighbours of a point at share `u` between the middle two."""
    return (1 - u) ** 3 / 6, (3 * u**3 - 6 * u**2 + 4) / 6, (-3 * u**3 + 3 * u**2 + 3 * u + 1) / 6, u**3 / 6


def world_map(
    grid: Row | Sequence[Row],
    title: str = "",
    note: str = "",
    true: tuple[float, float] | None = None,
    width: float = 9.0,
) -> Figure:
    """A posterior over coordinates as light on a night map: a ring at its best point, a cross at `true`.

    `grid`: `lat` (n,), `lon` (m,), `probability` (n, m), or rows of lat, lon, probability. Brightness is
    relative to the map's own maximum, its square root so that small mass shows, and is dimmed at sea. None or
    NaN: a point that was not asked about.
    """
    content = grid if isinstance(grid, Mapping) else grid_of(grid)
    frame = _frame()
    size = width / (frame[1] - frame[0])
    figure = Figure(figsize=(width, round(size * (frame[3] - frame[2]), 1)), facecolor=SEA)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    land = _draw_land(axes, width)
    _draw_light(axes, content, frame, land)
    lat, lon = best_point(content)
    x, y = project(lat, _wrap(lon))
    unit = width / 9
    label = partial(axes.text, transform=axes.transAxes, zorder=10, family=FONTS, va="bottom")
    axes.plot(x, y, "o", ms=15 * unit, mfc="none", mec="white", mew=1.3 * unit, zorder=8)
    if true is not None:
        x, y = project(true[0], _wrap(true[1]))
        axes.plot(x, y, "+", ms=10 * unit, color="#7fe3ff", mew=1.5 * unit, zorder=9)
    lines = textwrap.wrap(title, 15, break_long_words=False) or [""]
    size = min(28.0, 345 / max(1, *map(len, lines))) * unit  # left of Chile
    label(0.033, 0.14, "\n".join(lines), color="white", fontsize=size, style="italic", linespacing=1.0)
    label(0.035, 0.07, note, color="#a9b8cf", fontsize=12 * unit)
    axes.set_xlim(frame[0], frame[1])
    axes.set_ylim(frame[2], frame[3])
    return figure


def _frame() -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the map, without Antarctica and most of the empty Pacific."""
    edge = 0.965 * float(project(0.0, CENTRE + 180)[0])
    return -edge, edge, float(project(SOUTH, CENTRE)[1]), float(project(NORTH, CENTRE)[1]) + 0.05


def _wrap(lon: float) -> float:
    """The longitude as the outlines have it, within 180 degrees of `CENTRE`."""
    return (lon - CENTRE + 180) % 360 - 180 + CENTRE


def _draw_land(axes: Axes, width: float) -> Path:
    """Graticule, land, borders and coast; returns the outline of the land."""
    for lat in range(-60, 90, 30):
        axes.plot(*project(np.full(3, lat), np.linspace(-169, 191, 3)), color=GRATICULE, lw=0.8, zorder=1)
    for lon in range(-150, 190, 30):
        lats = np.linspace(-85, 85, 60)
        axes.plot(*project(lats, np.full(60, lon)), color=GRATICULE, lw=0.8, zorder=1)
    shapes = world()
    rings, coast = [], []
    for ring in shapes["land"]:
        points = np.stack(project(ring[:, 1], ring[:, 0]), axis=1)
        rings.append(Path(np.vstack([points, points[:1]]), closed=True))
        ends = np.isin(ring[:, 0], (-169.0, 191.0))  # where the map is cut there is no coast
        cut = np.flatnonzero(ends & np.roll(ends, -1))
        closed = np.vstack([points, points[:1]])
        coast += [part for part in np.split(closed, cut + 1) if len(part) > 1]
    outline = Path.make_compound_path(*rings)
    axes.add_patch(PathPatch(outline, facecolor=LAND, lw=0, zorder=2))
    borders = [np.stack(project(line[:, 1], line[:, 0]), axis=1) for line in shapes["borders"]]
    thin = width / 9
    axes.add_collection(LineCollection(borders, colors=BORDER, linewidths=0.5 * thin, zorder=3))
    axes.add_collection(LineCollection(coast, colors=COAST, linewidths=0.55 * thin, alpha=0.75, zorder=6))
    return outline


def _draw_light(axes: Axes, grid: Row, frame: tuple[float, float, float, float], land: Path) -> None:
    """The smoothed posterior over the projected frame: full on land, dimmed at sea."""
    wide = 900
    x = np.linspace(frame[0], frame[1], wide)
    y = np.linspace(frame[2], frame[3], round(wide * (frame[3] - frame[2]) / (frame[1] - frame[0])))
    lat, lon = np.broadcast_arrays(*unproject(x[None, :], y[:, None]))
    where = np.nan_to_num(lat), np.nan_to_num(lon)
    given = np.isfinite(np.asarray(grid["probability"], dtype=float))
    weight = smooth({**grid, "probability": given}, *where) * np.isfinite(lat)
    values = smooth({**grid, "probability": np.where(given, grid["probability"], 0.0)}, *where)
    values = values * (weight > 0) / np.maximum(weight, 0.2)  # a mean of the points that there are
    bright = np.sqrt(values / (values.max() or 1.0))
    image = GLOW(bright)
    rise = np.clip(bright / 0.32, 0, 1)
    image[..., 3] = 0.94 * rise**2 * (3 - 2 * rise)
    options: dict[str, Any] = {
        "extent": frame,
        "origin": "lower",
        "interpolation": "bilinear",
        "aspect": "auto",
    }
    image_sea = image.copy()
    image_sea[..., 3] *= 0.4 * np.clip(1.5 * weight, 0, 1)
    axes.imshow(image_sea, zorder=1.5, **options)
    axes.imshow(image, zorder=4, **options).set_clip_path(PathPatch(land, transform=axes.transData))

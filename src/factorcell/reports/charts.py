"""Charts: a table goes in, a matplotlib `Figure` comes out; nothing is computed but positions and colours."""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from factorcell.bootstrap import Interval
from factorcell.finite import is_number
from factorcell.reports.maps import world_map
from factorcell.reports.wording import natural_order
from factorcell.visible import visible_lines

__all__ = [
    "colours",
    "confusion_matrix",
    "gains_by_value",
    "learning_curves",
    "model_comparison",
    "png",
    "svg",
    "titled",
    "world_map",
]

Row = Mapping[str, Any]

INK, MUTED, RULE = "#1c2733", "#66717f", "#dde2e8"
ACCENT, LOSS, HEAT = "#d9622b", "#4a7fb5", "#c04f1c"
UPRIGHT = 2  # letters of names, such as ratings, that stand above a column without being turned
WIDTH = 4.6  # inches: as wide as a phone, so that the type can be read there; it grows on a desk
COLOURS = {"unadapted": "#8b95a3", "softmaxbias": "#2f9c8a", "concatcell": "#4a7fb5", "factorcell": ACCENT}
OTHERS = ("#d9622b", "#4a7fb5", "#2f9c8a", "#a45fb0", "#b8912b", "#8b95a3", "#c2556f", "#5d8a3a")
TITLES = {
    "unadapted": "Unadapted",
    "softmaxbias": "SoftmaxBias",
    "concatcell": "ConcatCell",
    "factorcell": "FactorCell",
}


def svg(figure: Figure, name: str) -> str:
    """The figure as SVG text; `name` makes its ids its own, so that several can stand in one page."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        _save(figure, stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def png(figure: Figure, scale: float = 2.0) -> bytes:
    """The figure as PNG, `scale` times 100 pixels an inch."""
    stream = io.BytesIO()
    _save(figure, stream, format="png", dpi=100 * scale, facecolor=figure.get_facecolor(), metadata={"Software": None})
    return stream.getvalue()


def _save(figure: Figure, stream: io.StringIO | io.BytesIO, **how: Any) -> None:
    """Draw a figure, whatever its names: what our font has no sign for is drawn as a box, and a browser has others."""
    for text in figure.findobj(Text):
        text.set_text(visible_lines(text.get_text()))  # matplotlib draws no lone surrogates
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(stream, **how)


def colours(models: Sequence[str]) -> dict[str, str]:
    """One colour per model: that of the paper's four models, the others in order."""
    spare = [colour for colour in OTHERS if colour not in {COLOURS.get(model) for model in models}] or [MUTED]
    unnamed = [model for model in models if model not in COLOURS]
    return {model: COLOURS.get(model) or spare[unnamed.index(model) % len(spare)] for model in models}


def legend(figure: Figure, marks: Sequence[Line2D], columns: int, top: float, gap: float, length: float) -> None:
    """What the `marks` mean, above a chart from `top` down; `length` of a mark and `gap` behind it in letters."""
    figure.legend(
        handles=list(marks),
        loc="upper left",
        bbox_to_anchor=(0.0, top),
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=length,
        handletextpad=gap,
        columnspacing=1.0,
        borderaxespad=0.1,
    )


def titled(model: object) -> str:
    """A model as people write it: FactorCell for factorcell; other names than the paper's as they are."""
    return TITLES.get(str(model), str(model))


def learning_curves(rows: Sequence[Row], x: str = "minutes") -> Figure:
    """Development perplexity over `x`, "minutes", "tokens" or "step".

    Rows: model, step, tokens, seconds, perplexity; a row whose `split` is not "dev" is omitted.
    """
    figure, axes = _chart(3.3)
    rows = [row for row in rows if row.get("split", "dev") == "dev" and is_number(row["perplexity"])]
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    ends: list[tuple[float, float, str, str]] = []
    curves: list[list[tuple[float, float]]] = []
    for model, colour in colours(models).items():
        curve = [(_position(row, x), float(row["perplexity"])) for row in rows if row["model"] == model]
        axes.plot(*zip(*curve, strict=True), color=colour, lw=1.8, solid_capstyle="round", zorder=3)
        axes.plot(*curve[-1], "o", color=colour, ms=4.5, zorder=4)
        ends.append((*curve[-1], titled(model), colour))
        curves.append(curve)
    axes.set_yscale("log")
    if rows:
        values = [float(row["perplexity"]) for row in rows]
        low, high = min(values), max(values)
        # First evaluations may be far above all others and out of the picture; the best and the last of a curve are in
        reached = [min(value for _, value in curve) for curve in curves]
        top = min(high, max(2.2 * max(reached), *(end[1] for end in ends)))
        axes.set_ylim(low / (min(top / low, 2.2) ** 0.08 + 0.001), top * 1.02)
        axes.set_xlim(0, 1.02 * max(end[0] for end in ends) or 1)
    _log_ticks(axes)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y", color=RULE, lw=0.7)
    axes.spines["bottom"].set_visible(True)
    axes.set_xlabel({"minutes": "minutes of training", "tokens": "million tokens read"}.get(x, x))
    axes.set_title("perplexity on unseen texts", loc="left", fontsize=9, color=MUTED, pad=8)
    labels = [f"{_short(title)}  {value:.3g}" for _, value, title, _ in ends]
    right = 0.96 - 0.0158 * max(map(len, labels), default=0)  # 0.0158: a letter's share of the width
    figure.subplots_adjust(left=0.085, right=right, top=0.9, bottom=0.15)
    for place, label, end in zip(_apart(axes, [end[1] for end in ends]), labels, ends, strict=True):
        axes.text(1.025, place, label, color=end[3], transform=axes.transAxes, va="center", fontsize=9)
    return figure


def _position(row: Row, x: str) -> float:
    scale = {"minutes": ("seconds", 1 / 60), "tokens": ("tokens", 1e-6)}
    name, factor = scale.get(x, (x, 1.0))
    return float(row[name]) * factor


def _log_ticks(axes: Axes) -> None:
    """Plain round numbers on the logarithmic axis."""
    low, high = axes.get_ylim()
    ticks = [
        tick for tick in MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if 1.03 * low <= tick <= high
    ]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)


def _apart(axes: Axes, values: Sequence[float], gap: float = 0.072) -> list[float]:
    """Heights (share of the axes) for labels of `values`, in their order and at least `gap` apart."""
    points = axes.transAxes.inverted().transform(axes.transData.transform([(0, value) for value in values] or [(0, 1)]))
    order = sorted(range(len(values)), key=lambda i: (values[i], -i))
    places = [float(points[i][1]) for i in order]
    for _ in range(200):
        for i in range(len(places) - 1):
            push = gap - (places[i + 1] - places[i])
            if push > 1e-6:
                places[i], places[i + 1] = places[i] - push / 2, places[i + 1] + push / 2
    lowest = max(0.0, 0.01 - min(places, default=0.0))
    return [places[order.index(i)] + lowest for i in range(len(values))]


def model_comparison(rows: Sequence[Row]) -> Figure:
    """Perplexity and, where there is one, accuracy of each model as dots with their numbers."""
    large = any(float(row["perplexity"]) >= 100 for row in rows)
    panels = [("perplexity", "perplexity (lower is better)", "{:.1f}" if large else "{:.2f}")]
    if any(row.get("accuracy") is not None for row in rows):
        panels.append(("accuracy", "accuracy (higher is better)", "{:.1%}"))
    figure = Figure(figsize=(WIDTH, 0.6 + len(rows) * max(0.36, min(0.62, 2.5 / len(rows)))), facecolor="none")
    palette = colours([str(row["name"]) for row in rows])
    for index, (key, title, form) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), index + 1)
        _bare(axes)
        values = [float("nan") if row.get(key) is None else float(row[key]) for row in rows]
        low, high = np.nanmin(values), np.nanmax(values)
        span = (high - low) or abs(high) or 1.0
        for y, (row, value) in enumerate(zip(rows, values, strict=True)):
            axes.axhline(y, color=RULE, lw=0.8, zorder=1)
            if math.isfinite(value):
                axes.plot(value, y, "o", color=palette[str(row["name"])], ms=7, zorder=3)
                axes.text(value, y - 0.17, form.format(value), ha="center", va="bottom", fontsize=8, color=INK)
        axes.set_xlim(low - 0.18 * span, high + 0.18 * span)
        axes.set_ylim(len(rows) - 0.7, -0.6)
        axes.set_xticks([])
        names = [titled(row.get("title") or row["name"]) for row in rows]
        axes.set_yticks(range(len(rows)), names if index == 0 else [""] * len(rows), color=INK)
        axes.set_title(title, loc="left", fontsize=8.5, color=MUTED)
    figure.subplots_adjust(left=0.235, right=0.985, top=1 - 0.3 / figure.get_figheight(), bottom=0.03, wspace=0.1)
    return figure


def gains_by_value(rows: Sequence[Row], most: int = 20, over: str | None = None) -> Figure:
    """How much lower the perplexity is than that of a baseline, per value: the `most` best and `most` worst.

    The gain is `over` a model of that name, or over the same one without context.

    Values that fit and have an order, such as numbers, stand in it. Rows: value, count, perplexity, gain (a share:
    0.05 is 5 % lower), gain_low and gain_high. Where these hold zero, or are None, the bar is grey.
    """
    ranked = sorted(rows, key=lambda row: -float(row["gain"]))
    shown: list[Row | None] = list(ranked)
    if len(ranked) > 2 * most:
        shown = [*ranked[:most], None, *ranked[-most:]]
    elif order := natural_order([str(row["value"]) for row in rows]):
        shown = [rows[place] for place in order]
    figure, axes = _chart(0.75 + 0.19 * max(len(shown), 1))
    gains = [0.0 if row is None else 100 * float(row["gain"]) for row in shown]
    found = [None if row is None else Interval.of(row, "gain") for row in shown]
    shades = [(MUTED, ACCENT, LOSS)[gain.sign if gain else 0] for gain in found]
    axes.barh(range(len(shown)), gains, color=shades, height=0.66, zorder=2)
    reach = max((abs(gain) for gain in gains), default=1.0) or 1.0
    for y, (row, gain) in enumerate(zip(shown, gains, strict=True)):
        if row is not None:
            side = "left" if gain >= 0 else "right"
            shift = 0.015 * reach if gain >= 0 else -0.015 * reach
            axes.text(
                gain + shift,
                y,
                f"{gain:+.1f} %".replace("-", "−"),
                va="center",
                ha=side,
                fontsize=7.5,
                color=INK,
            )
    names = ["⋮" if row is None else f"{_short(row['value'])}  ({int(row['count']):,})" for row in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=8, color=INK)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    low, high = min(0.0, *gains, 0.0), max(0.0, *gains, 0.0)
    sides = (low < 0) + (high > 0)  # on which a number takes a fifth of the width
    room = 0.22 * ((high - low) or 1.0) / (1 - 0.22 * sides)
    axes.set_xlim(low - room * (low < 0), high + room * (high > 0 or sides == 0))
    axes.axvline(0, color=MUTED, lw=0.8)
    axes.set_xticks([])
    top = 1 - 0.17 / figure.get_figheight()
    baseline = "without context" if over is None else f"of {_short(over)}"
    figure.text(0.02, top, f"perplexity below that {baseline} (texts)", fontsize=9, color=MUTED, va="center")
    figure.subplots_adjust(left=0.44, right=0.99, top=1 - 0.36 / figure.get_figheight(), bottom=0.02)
    return figure


def _short(value: object, most: int = 21) -> str:
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def confusion_matrix(labels: Sequence[str], counts: ArrayLike) -> Figure:
    """What was taken for what: true values down, predicted ones across, in per cent of each row.

    Values that have an order, such as numbers, stand in it.
    """
    size = len(labels)
    table = np.asarray(counts, dtype=float).reshape(size, size)
    if order := natural_order([str(label) for label in labels]):
        labels, table = [labels[place] for place in order], table[np.ix_(order, order)]
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    figure, axes, font = _square([_short(label, 16) for label in labels])
    red, green, blue = to_rgb(HEAT)
    for i, j in np.ndindex(size, size):
        share = float(shares[i, j])
        shade = (red, green, blue, 0.04 + 0.92 * share**0.8)
        axes.add_patch(Rectangle((j + 0.03, i + 0.03), 0.94, 0.94, facecolor=shade, lw=0))
        if size <= 14 and share >= 0.005:
            colour = "white" if share > 0.62 else INK
            number = axes.text(j + 0.5, i + 0.52, f"{100 * share:.0f}", fontsize=font, color=colour)
            number.set(ha="center", va="center")
    height = figure.get_figheight()
    figure.text(0.02, 1 - 0.14 / height, "per cent of each true value ↓", fontsize=8.5, color=MUTED)
    figure.text(0.02, 1 - 0.31 / height, "taken for →", fontsize=8.5, color=MUTED)
    return figure


def _square(names: Sequence[str]) -> tuple[Figure, Axes, float]:
    """Empty axes with `names` on the left and aslant above, as large as these leave room for; and their type size."""
    size = max(len(names), 1)
    font = max(4.0, min(8.5, 150 / size))
    lengths = [0.0082 * font * len(name) for name in names] or [0.0]  # inches
    left = 0.12 + max(lengths)
    aslant = [0.75 * length for length in lengths]
    side = min((WIDTH - left - 0.06 - over) / ((i + 0.5) / size) for i, over in enumerate(aslant))
    side = min(side, WIDTH - left - 0.06)
    height = side + max(aslant) + 0.5
    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    axes = figure.add_axes((left / WIDTH, 0.04 / height, side / WIDTH, side / height))
    _bare(axes)
    ticks = [i + 0.5 for i in range(len(names))]
    axes.set_yticks(ticks, names, fontsize=font, color=INK)
    axes.set_xticks(ticks, names, fontsize=font, color=INK)
    if max(map(len, names), default=0) > UPRIGHT:
        axes.set_xticks(ticks, names, rotation=45, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2)
    axes.set_xlim(0, size)
    axes.set_ylim(size, 0)
    return figure, axes, font


def _chart(height: float) -> tuple[Figure, Axes]:
    """An empty chart."""
    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    axes = figure.add_subplot()
    _bare(axes)
    return figure, axes


def _bare(axes: Axes) -> None:
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=MUTED, pad=4)
    axes.xaxis.label.set(color=MUTED, fontsize=9)

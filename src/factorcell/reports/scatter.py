"""Charts of many trainings as points: accuracy against perplexity, perplexity against each option.

Rows are those of a search: number, state, model, params, perplexity and, where known, accuracy.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from factorcell.reports.charts import INK, MUTED, RULE, WIDTH, Row, colours, legend, titled

SHAPES = {"unadapted": "D", "softmaxbias": "^", "concatcell": "s", "factorcell": "o"}
WIDE = 5.0  # from this ratio of the largest to the smallest, perplexities stand on a logarithmic axis
GAP = 0.17  # share of an axis, the least between two of its numbers
REACH = 2.5  # perplexities above so many times the best are drawn at the edge


def accuracy_against_perplexity(rows: Sequence[Row]) -> Figure:
    """Complete trials with an accuracy, the best ones up and right; a larger mark is a higher rank."""
    figure = Figure(figsize=(WIDTH, 3.9), facecolor="none")
    axes = figure.add_axes((0.1, 0.13, 0.85, 0.68))
    shown = [row for row in rows if row["state"] == "complete" and row.get("accuracy") is not None]
    palette = colours(models_of(rows))
    for row in shown:
        mark = _shape(row), palette[row["model"]], _size(row["params"].get("rank"))
        axes.plot(row["perplexity"], 100 * row["accuracy"], mark[0], color=mark[1], ms=mark[2], alpha=0.75, mew=0)
    perplexities = [float(row["perplexity"]) for row in shown]
    scaled(axes, "x", perplexities, max(perplexities) > WIDE * min(perplexities))
    axes.invert_xaxis()
    scaled(axes, "y", [100 * float(row["accuracy"]) for row in shown], False)
    axes.set_xlabel("perplexity (lower to the right)")
    axes.set_title("accuracy (per cent)", loc="left", fontsize=9, color=MUTED, pad=6)
    dress(axes)
    ranks = sorted({row["params"]["rank"] for row in shown if "rank" in row["params"]})
    _legend(figure, models_of(shown), palette, ranks)
    return figure


def perplexity_by_option(rows: Sequence[Row], options: Mapping[str, str], logs: Collection[str] = ()) -> Figure:
    """Perplexity over each of `options`, a small chart each, with its note beside its name; pruned trials are hollow.

    All `rows` have a perplexity. `logs`: options on a logarithmic axis.
    """
    lines = math.ceil(len(options) / 2)
    height = 0.5 + 1.75 * lines
    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    palette = colours(models_of(rows))
    best = min(float(row["perplexity"]) for row in rows)
    edge = REACH * best
    for index, (name, note) in enumerate(options.items()):
        left, below = 0.095 + 0.5 * (index % 2), height - 0.68 - 1.75 * (index // 2) - 1.1
        axes = figure.add_axes((left, below / height, 0.39, 1.1 / height))
        points = [row for row in rows if name in row["params"]]
        _options_axis(axes, [row["params"][name] for row in points], name in logs)
        for row in points:
            over = row["perplexity"] > edge
            axes.plot(
                _place(axes, row, name),
                min(row["perplexity"], edge),
                "x" if over else _shape(row),
                ms=4.5,
                color=palette[row["model"]],
                mfc="none" if row["state"] == "pruned" else palette[row["model"]],
                alpha=0.8,
                clip_on=False,
                mew=0.8,
            )
            if row["perplexity"] == best:
                axes.plot(_place(axes, row, name), best, "o", ms=9, mfc="none", mec=INK, mew=0.9, clip_on=False)
        scaled(axes, "y", [min(float(row["perplexity"]), edge) for row in rows], False)
        axes.set_title(name.replace("_", " "), loc="left", fontsize=9, color=INK, pad=5)
        axes.set_title(note, loc="right", fontsize=8, color=MUTED, pad=5)
        dress(axes)
    _legend(figure, models_of(rows), palette, [])
    return figure


def models_of(rows: Sequence[Row]) -> list[str]:
    """The model classes of the rows: the papers' in the papers' order, then others."""
    there = {str(row["model"]) for row in rows}
    return [model for model in SHAPES if model in there] + sorted(there - SHAPES.keys())


def _shape(row: Row) -> str:
    return SHAPES.get(str(row["model"]), "P")


def _size(rank: float | None) -> float:
    """The width of a mark (points): its area grows with the rank."""
    return 5.5 if rank is None else math.sqrt(22 + 5 * min(rank, 40))


def _options_axis(axes: Axes, values: Sequence[float | str], logarithmic: bool) -> None:
    """The x axis of an option: numbers, or names side by side."""
    if any(isinstance(value, str) for value in values):
        names = sorted({str(value) for value in values})
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.6, len(names) - 0.4)
    else:
        scaled(axes, "x", [float(value) for value in values], logarithmic)


def _place(axes: Axes, row: Row, name: str) -> float:
    """Where a trial stands on the axis of an option; trials of one name spread a little, by their number."""
    value = row["params"][name]
    if not isinstance(value, str):
        return float(value)
    names = [label.get_text() for label in axes.get_xticklabels()]
    return float(names.index(value)) + 0.5 * (int(row["number"]) * 0.618 % 1 - 0.5)


def scaled(axes: Axes, which: str, values: Sequence[float], logarithmic: bool) -> None:
    """Limits and round ticks around `values`."""
    low, high = min(values), max(values)
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    if logarithmic:
        room = (high / low) ** 0.07 if low < high else 1.1
        limits = low / room, high * room
    else:
        room = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
        limits = low - room, high + room
    if logarithmic and high > 8 * low:
        decade = 10.0 ** math.floor(math.log10(low))
        ticks = [decade * 10**power * step for power in range(12) for step in (1, 2, 5)]
    else:
        whole = all(value == round(value) for value in values)
        locator = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=whole)
        ticks = [float(tick) for tick in locator.tick_values(*limits)]
    ticks = [tick for tick in ticks if limits[0] <= tick <= limits[1]]
    (axes.set_xscale if which == "x" else axes.set_yscale)("log" if logarithmic else "linear")
    (axes.set_xlim if which == "x" else axes.set_ylim)(*limits)
    ticks = _spaced(axes, which, ticks)
    axis.set_ticks(ticks, [_number(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def _spaced(axes: Axes, which: str, ticks: Sequence[float]) -> list[float]:
    """Those of `ticks` that keep their distance from the one kept before."""
    points = axes.transLimits.transform(axes.transScale.transform([(tick, tick) for tick in ticks]))
    kept: list[tuple[float, float]] = []
    for tick, point in zip(ticks, points, strict=True):
        place = float(point[0 if which == "x" else 1])
        if not kept or place - kept[-1][1] >= GAP:
            kept.append((tick, place))
    return [tick for tick, _ in kept]


def _number(value: float) -> str:
    """A round number as short as it goes: 250, 0.05, 5e-4."""
    if 0 < abs(value) < 0.01 or abs(value) >= 1e5:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}"


def dress(axes: Axes) -> None:
    """The look of the other charts."""
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set(visible=True, color=RULE)
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED, pad=4)
    axes.xaxis.label.set(color=MUTED, fontsize=9)
    axes.grid(axis="y", color=RULE, lw=0.7)
    axes.set_axisbelow(True)


def _legend(figure: Figure, models: Sequence[str], palette: dict[str, str], ranks: Sequence[float]) -> None:
    """Above the chart: the model classes and, where the size of a mark means it, three ranks."""
    marks = [(SHAPES.get(model, "P"), palette[model], 6.0, titled(model)) for model in models]
    sizes = list(dict.fromkeys([ranks[0], ranks[len(ranks) // 2], ranks[-1]])) if ranks else []
    rows = [marks, [("o", MUTED, _size(rank), f"rank {rank:g}") for rank in sizes]]
    for line, entries in enumerate(row for row in rows if row):
        handles = [
            Line2D([], [], marker=shape, ls="", ms=size, color=colour, mew=0, label=text)
            for shape, colour, size, text in entries
        ]
        top = 1 - 0.24 * line / figure.get_figheight()
        legend(figure, handles, len(handles), top, gap=0.1, length=2.0)

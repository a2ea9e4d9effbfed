"""Charts as matplotlib figures: each function takes rows and returns a `Figure`, whose title a page adds.

All charts use `STYLE` and matplotlib's constrained layout, which keeps all text inside the figure.
"""

import io
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from factorcell.bootstrap import Interval
from factorcell.data.columns.values import natural_order
from factorcell.evaluation.explaining.token_evidence import visible_token
from factorcell.io.output import escape_hidden_lines, is_number

Row = Mapping[str, Any]

INK, MUTED, RULE = "#1c2733", "#66717f", "#dde2e8"
# Each colour has one meaning on all pages.
HIGHER, LOWER = "#4a7fb5", "#d9622b"  # signs: higher, or more probable in the first context; lower, or in the second
SHARE = "#2d6a63"  # a share between none (transparent) and all
HEAT = LinearSegmentedColormap.from_list("heat", [(*to_rgb(SHARE), 0.04), (*to_rgb(SHARE), 0.96)])
WIDTH = 4.6  # inches, so that text is readable on a phone
# Names of models, systems, groups and of more than two contexts: no colour of a sign is among them.
EXTRA_COLOURS = ("#a45fb0", "#2f9c8a", "#b8912b", "#c2556f", "#5d8a3a", "#7c6fcf", "#8b95a3", "#96664a")
MAX_MARKED_POINTS = 6  # curves with more points are drawn without a mark at each point
MAX_BARS = 30  # of more values, those with the most texts are shown
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.size": 8.5,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.7,
    "lines.markersize": 5,
    "text.color": INK,
    "text.parse_math": False,  # dollars are text
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "xtick.major.pad": 6,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": 8,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in `STYLE`, without warnings about characters that the font lacks, because browsers have more fonts."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG text; its ids depend on `name`, so that a page can have several figures."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        _save(figure, stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def png(figure: Figure, scale: float) -> bytes:
    """Return the figure as a PNG image with `scale` times 100 pixels per inch."""
    stream = io.BytesIO()
    _save(figure, stream, format="png", dpi=100 * scale, facecolor=figure.get_facecolor(), metadata={"Software": None})
    return stream.getvalue()


def _save(figure: Figure, stream: io.StringIO | io.BytesIO, **options: Any) -> None:
    """Save a figure with escapes for hidden characters, except those of the labels of ticks."""
    for text in figure.findobj(Text):
        text.set_text(escape_hidden_lines(text.get_text()))  # matplotlib cannot draw lone surrogates
    with styled():
        figure.savefig(stream, **options)


def colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name."""
    return dict(zip(names, itertools.cycle(EXTRA_COLOURS), strict=False))


def truncate(value: object, max_length: int = 28) -> str:
    """Return `value` as text of at most `max_length` characters, with escapes for hidden characters."""
    text = escape_hidden_lines(str(value))
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def add_legend(figure: Figure) -> None:
    """Add a legend with the labels of all axes, without duplicates, above the chart."""
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if handles:
        longest_label = max(map(len, handles))
        columns_per_line = 64 // (longest_label + 5)  # a line has room for 64 characters, and a handle takes 5
        column_count = max(1, min(len(handles), columns_per_line))
        place: Any = {"loc": "outside upper left", "ncols": column_count}
        figure.legend(list(handles.values()), list(handles), frameon=False, fontsize=8.5, columnspacing=1.0, **place)


def round_ticks(axis: Axis, count: int = 5, *, is_log: bool = False) -> None:
    """Put ticks at about `count` round numbers of a linear axis, or at powers of ten if the axis `is_log`."""
    low, high = sorted(axis.get_view_interval())
    if is_log and high > 8 * low:
        axis.set_major_locator(LogLocator(subs=(1, 3) if high < 100 * low else (1,)))
    else:
        axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def has_curve(rows: Sequence[Row]) -> bool:
    """Return whether any model was evaluated on the development texts at two or more steps."""
    steps = {(row["model"], row["step"]) for row in rows if row.get("split", "dev") == "dev"}
    return len(steps) > len({model for model, _ in steps})


@styled()
def learning_curves(rows: Sequence[Row]) -> Figure:
    """Draw the perplexity of models on the development texts over the minutes of training."""
    figure = Figure(figsize=(WIDTH, 3.3))
    axes = figure.subplots()
    rows = [row for row in rows if row.get("split", "dev") == "dev" and is_number(row["perplexity"])]
    top_limits = []  # of the perplexity axis, for each curve
    for model, colour in colours(list(dict.fromkeys(str(row["model"]) for row in rows))).items():
        model_rows = [row for row in rows if row["model"] == model]
        minutes = [float(row["seconds"]) / 60 for row in model_rows]
        perplexities = [float(row["perplexity"]) for row in model_rows]
        last_perplexity = perplexities[-1]
        label = f"{truncate(model)}  {last_perplexity:.3g}"
        marker = "." if len(minutes) <= MAX_MARKED_POINTS else None
        axes.plot(minutes, perplexities, color=colour, label=label, marker=marker)
        axes.plot(minutes[-1], last_perplexity, "o", color=colour)
        top_limits += [2.2 * min(perplexities), 1.02 * last_perplexity]
    axes.set_yscale("log")
    if rows:  # the limit clips first evaluations that are far above all others
        _, automatic_top = axes.get_ylim()
        axes.set_ylim(top=min(max(top_limits), automatic_top))
        axes.set_xlim(left=0)
    round_ticks(axes.yaxis, 6, is_log=True)
    axes.grid(axis="y")
    axes.set_xlabel("minutes of training")
    add_legend(figure)
    return figure


@styled()
def signed_bars(
    names: Sequence[str],
    intervals: Sequence[Interval],
    bar_colours: Sequence[str],
    number_format: str,
    scale: float = 1.0,
) -> Figure:
    """Draw a bar per name, to the right or left of zero, with its interval and formatted value, times `scale`."""
    figure = Figure(figsize=(WIDTH, 0.15 + 0.19 * max(1, len(names))))
    axes = figure.subplots()
    values = [scale * interval.point for interval in intervals]
    ends = [[interval.point if end is None else end for end in interval[1:]] for interval in intervals]
    distances = np.maximum(0, [[-1], [1]] * (scale * np.reshape(ends, (-1, 2)).T - values))
    error_style = {"ecolor": INK, "lw": 0.9}
    bars = axes.barh(range(len(names)), values, color=bar_colours, height=0.66, xerr=distances, error_kw=error_style)
    texts = [format(value, number_format).replace("-", "−") for value in values]
    axes.bar_label(bars, texts, padding=3)
    axes.axvline(0, color=MUTED, lw=0.8)
    axes.margins(x=0.25)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xticks([])
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.spines["bottom"].set_visible(False)
    return figure


def word_bars(rows: Sequence[Row]) -> Figure:
    """Draw by how many nats a context raises or lowers each token (TACL 2018, table 5); rows have token and nats."""
    nats = [float(row["nats"]) for row in rows]
    names = [truncate(visible_token(str(row["token"])), 14) for row in rows]
    return signed_bars(names, list(map(Interval, nats)), [HIGHER if value >= 0 else LOWER for value in nats], "+.2f")


def gain_bars(rows: Sequence[Row], key: str) -> Figure:
    """Draw gains in per cent; bars of gains that are not significant are grey.

    Rows have a value, maybe the count of its texts, and under `key` the gain (0.05 for 5 %) with its interval.
    """
    names = [truncate(row["value"]) + (f"  ({int(row['count']):,})" if row.get("count") else "") for row in rows]
    intervals = [Interval(row[key], row.get(f"{key}_low"), row.get(f"{key}_high")) for row in rows]
    colour_of_sign = {0: MUTED, 1: HIGHER, -1: LOWER}
    bar_colours = [colour_of_sign[interval.sign] for interval in intervals]
    return signed_bars(names, intervals, bar_colours, "+.1f", 100.0)


def shown_gains(rows: Sequence[Row], key: str) -> list[Row]:
    """Return the values of a column that a chart shows, in natural order or by their gain."""
    most_frequent = sorted(rows, key=lambda row: -int(row["count"]))[:MAX_BARS]
    order = natural_order([str(row["value"]) for row in most_frequent])
    if order:
        return [most_frequent[index] for index in order]
    return sorted(most_frequent, key=lambda row: -float(row[key]))


@styled()
def confusion_matrix(labels: Sequence[str], counts: ArrayLike) -> Figure:
    """Draw a confusion matrix in per cent of the texts of each true value, with the labels in natural order."""
    label_count = len(labels)
    matrix = np.asarray(counts, dtype=float).reshape(label_count, label_count)
    if order := natural_order([str(label) for label in labels]):
        labels, matrix = [labels[index] for index in order], matrix[np.ix_(order, order)]
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    font_size = max(4.0, min(8.5, 150 / max(label_count, 1)))
    figure = Figure(figsize=(WIDTH, min(WIDTH, 0.8 + 0.4 * label_count)))
    axes = figure.subplots()
    axes.imshow(shares, cmap=HEAT, vmin=0, vmax=1, interpolation="none", aspect="auto")
    for (i, j), share in np.ndenumerate(shares):
        if label_count <= 14 and share >= 0.005:
            colour = "white" if share > 0.62 else INK
            axes.text(j, i, f"{100 * share:.0f}", fontsize=font_size, color=colour, ha="center", va="center")
    names = [truncate(label, 16) for label in labels]
    axes.set_yticks(range(label_count), names, fontsize=font_size, color=INK)
    axes.xaxis.tick_top()
    axes.set_xticks(range(label_count), names, fontsize=font_size, color=INK)
    if max(map(len, names), default=0) > 2:
        axes.set_xticks(range(label_count), names, rotation=45, ha="left", rotation_mode="anchor")
    axes.spines["bottom"].set_visible(False)
    return figure

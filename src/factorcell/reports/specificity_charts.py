"""Charts of how well generated texts fit their context, a mark a model (thesis, figures 6.1 to 6.4).

Rows: model (its class), specificity (accuracy of a judge of its texts), and where known accuracy (of classifying real
texts by Bayes' rule), rank, perplexity. Correlations are those of `judging.correlations`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from factorcell.reports.plots import INK, MUTED, WIDTH, Row, colours, legend, titled
from factorcell.reports.scatter import SHAPES, dress, models_of, scaled

SIZE = 6.0  # of a mark, in points
NAMES = {"accuracy": "accuracy on real texts", "rank": "FactorCell rank", "perplexity": "perplexity"}


def specificity_against_accuracy(
    rows: Sequence[Row], correlations: Mapping[str, Row], real: float | None = None
) -> Figure:
    """Specificity of generated texts over accuracy on real ones, by model class (figures 6.1 and 6.4).

    `real`: the judge's accuracy on real texts, a line that says what can be reached.
    """
    figure = Figure(figsize=(WIDTH, 3.7), facecolor="none")
    axes = figure.add_axes((0.1, 0.14, 0.86, 0.7))
    _points(axes, rows, "accuracy", 100.0, real)
    axes.set_title(
        f"specificity (per cent){_told(correlations, 'accuracy')}", loc="left", fontsize=9, color=MUTED, pad=6
    )
    axes.set_xlabel("accuracy of classifying real texts (per cent)")
    _legend(figure, [row for row in rows if row.get("accuracy") is not None])
    return figure


def specificity_against_rank_and_perplexity(
    rows: Sequence[Row], correlations: Mapping[str, Row], real: float | None = None
) -> Figure:
    """Specificity over rank, of the models that have one, and over perplexity, side by side (figures 6.2 and 6.3)."""
    figure = Figure(figsize=(WIDTH, 3.1), facecolor="none")
    panels = [name for name in ("rank", "perplexity") if any(row.get(name) is not None for row in rows)]
    for index, name in enumerate(panels):
        width = 0.94 / len(panels)
        axes = figure.add_axes((0.085 + index * width, 0.17, width - 0.085, 0.61))
        _points(axes, rows, name, 1.0, real)
        title = f"{'specificity by ' if index == 0 else 'by '}{name}{_told(correlations, name)}"
        axes.set_title(title, loc="left", fontsize=8.5, color=MUTED, pad=6)
        axes.set_xlabel(NAMES[name])
    _legend(figure, rows)
    return figure


def _points(axes: Axes, rows: Sequence[Row], name: str, scale: float, real: float | None) -> None:
    """The models that have the figure `name`, over it times `scale`."""
    palette = colours(models_of(rows))
    shown = [row for row in rows if row.get(name) is not None and row.get("specificity") is not None]
    for row in shown:
        shape, colour = SHAPES.get(str(row["model"]), "P"), palette[str(row["model"])]
        place = scale * float(row[name]), 100 * float(row["specificity"])
        axes.plot(*place, shape, color=colour, ms=SIZE, alpha=0.8, mew=0, zorder=3)
    heights = [100 * float(row["specificity"]) for row in shown]
    if real is not None:
        heights.append(100 * real)
        axes.axhline(100 * real, color=INK, lw=0.8, ls=(0, (4, 3)), zorder=2)
        axes.annotate(
            "real texts",
            (1, 100 * real),
            (0, 2),
            axes.get_yaxis_transform(),
            "offset points",
            ha="right",
            fontsize=7.5,
            color=INK,
        )
    scaled(axes, "x", [scale * float(row[name]) for row in shown], False)
    scaled(axes, "y", heights, False)
    dress(axes)


def _told(correlations: Mapping[str, Any], name: str) -> str:
    """The correlation with `name`, for a title."""
    found = correlations.get(name)
    return "" if found is None or found["r"] is None else f", r = {found['r']:.2f}".replace("-", "−")


def _legend(figure: Figure, rows: Sequence[Row]) -> None:
    models = models_of(rows)
    palette = colours(models)
    marks = [
        Line2D([], [], marker=SHAPES.get(model, "P"), ls="", ms=SIZE, color=palette[model], mew=0, label=titled(model))
        for model in models
    ]
    legend(figure, marks, min(4, len(marks)), 1.0, gap=0.1, length=2.0)

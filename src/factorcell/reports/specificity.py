"""Context-specificity of several models: a table for the terminal, and one page."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from factorcell.evaluation.comparison import told_difference
from factorcell.generation.generate import in_order
from factorcell.reports import charts as plots
from factorcell.reports import elements
from factorcell.reports.charts import INK, MUTED, WIDTH, Row, colours, legend, titled
from factorcell.reports.scatter import SHAPES, dress, models_of, scaled
from factorcell.reports.wording import natural_order

COLUMNS = {
    "specificity": ("fit their context", ".1%"),
    "deviation": ("mean absolute deviation", ".2f"),
    "perplexity": ("perplexity of real texts", ".2f"),
    "accuracy": ("accuracy on real texts", ".1%"),
    "distinct_2": ("different bigrams", ".1%"),
    "repeated": ("trigrams said before", ".1%"),
    "copied_5": ("5-grams copied", ".1%"),
    "copied_8": ("8-grams copied", ".1%"),
    "tokens": ("tokens a text", ".1f"),
}
HOW = (
    "Each model wrote {texts:,} texts, as many for each value of {target}. A judge that has learned from real texts "
    "says which value each was written for: the share it gets right is how specific the texts are, and what it reaches "
    "on real texts is what can be expected.{deviation} Accuracy on real texts is the model's own, by Bayes' rule. "
    "Trigrams said before are those that a text repeats; copied n-grams are found in the training texts too, and so "
    "are many of real texts that were held out. In brackets: what other texts would make of a difference, 95 times of "
    "100; figures in bold are better than those of all other models by more than that."
)
DEVIATION = " The mean absolute deviation is that of the predicted value from the wanted one."
AGAINST = {"accuracy": "accuracy on real texts", "rank": "FactorCell rank", "perplexity": "perplexity"}


def table(rows: Sequence[Row], real: Row) -> tuple[list[dict[str, str]], list[str]]:
    """A row of text for each model and for real texts, and the names of its columns."""
    shown = [
        {
            "model": row["name"],
            **{title: _plain(row.get(name), form) for name, (title, form) in COLUMNS.items()},
            **{title: told_difference(name, row) or "-" for name, title in _differences(rows).items()},
        }
        for row in (*rows, real)
    ]
    return shown, list(shown[0])


def _differences(rows: Sequence[Row]) -> dict[str, str]:
    """The differences to the first model, which are more than chance where they say so, and their titles."""
    if len(rows) < 2:
        return {}
    first = rows[0]["name"]
    return {"specificity_difference": f"fit above {first}", "gain": f"perplexity below {first}"}


def page(target: str, rows: Sequence[Row], real: Row, correlations: Mapping[str, Row], examples: Sequence[Row]) -> str:
    """The page of the models' texts for the values of `target`."""
    kept = {name: column for name, column in COLUMNS.items() if any(row.get(name) is not None for row in (*rows, real))}
    differences = _differences(rows)
    header = ("model", *(title for title, _ in kept.values()), *differences.values())
    lines = [
        (
            row["name"],
            *(elements.formatted(row.get(name), form) for name, (_, form) in kept.items()),
            *(told_difference(name, row) for name in differences),
        )
        for row in (*rows, real)
    ]
    shown = elements.table(header, lines, elements.ahead(rows, list(kept), start=1))
    sections = [("How well the texts fit", _charts(rows, real, correlations) + shown)]
    sections.append(("By value", _by_value(target, rows, real)))
    sections.append(("What was written", _examples(target, examples)))
    deviation = DEVIATION if "deviation" in kept else ""
    told = HOW.format(texts=rows[0]["texts"], target=target, deviation=deviation)
    sections.append(("How it was measured", f"<p>{elements.escaped(told)}</p>"))
    models = "one model" if len(rows) == 1 else f"{len(rows)} models"
    lead = f"Texts that {models} wrote for each value of {target}, judged by a classifier of real texts."
    title, doubts = f"Does the text fit its {target}?", [line for row in rows for line in row.get("cautions", ())]
    return elements.document(title, sections, kicker="factorcell specificity", lead=lead, cautions=doubts)


def _plain(value: Any, form: str) -> str:
    shown = elements.formatted(value, form)
    return "-" if shown is None else shown[1]


def _charts(rows: Sequence[Row], real: Row, correlations: Mapping[str, Row]) -> str:
    """The figures of the thesis, where there are several models and they have what the figures show."""
    if len(rows) < 2:
        return ""
    charts = ""
    if any(row["accuracy"] is not None for row in rows):
        figure = specificity_against_accuracy(rows, correlations, real["specificity"])
        error = max(row["specificity_error"] for row in rows)
        note = f"A mark is a model; one standard error of its share is up to {error:.1%}."
        charts += elements.chart(figure, "accuracy", "Specificity over accuracy on real texts", note)
    figure = specificity_against_rank_and_perplexity(rows, correlations, real["specificity"])
    charts += elements.chart(figure, "rank", "Specificity over rank and over perplexity")
    content = f'<div class="grid">{charts}</div>'
    lines = [
        (
            AGAINST[name],
            f"{row['r']:.2f}",
            "–" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}",
            row["n"],
        )
        for name, row in correlations.items()
        if row["r"] is not None
    ]
    if lines:
        content += "<h3>Correlation of specificity</h3>"
        content += elements.table(("with", "r", "middle 95 %", "models"), lines)
    return content


def _by_value(target: str, rows: Sequence[Row], real: Row) -> str:
    """How often the texts of each value are judged to fit."""
    names = in_order(real["confusion"]["labels"])
    names = [names[place] for place in natural_order(names) or range(len(names))]
    lines = [
        (row["name"], *(elements.formatted(row["by_value"].get(name), ".1%") for name in names))
        for row in (*rows, real)
    ]
    return elements.table(("model", *(f"{target} {name}" for name in names)), lines)


def _examples(target: str, examples: Sequence[Row]) -> str:
    """The first texts of each value, a fold per model."""
    content = ""
    for name in dict.fromkeys(row["name"] for row in examples):
        lines = [(row["value"], row["text"]) for row in examples if row["name"] == name]
        summary = f"<summary>{elements.escaped(plots.titled(name))}</summary>"
        content += f"<details>{summary}{elements.table((target, 'text'), lines)}</details>"
    return content


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
    """Specificity over rank, where models differ in it, and over perplexity, side by side (figures 6.2 and 6.3)."""
    figure = Figure(figsize=(WIDTH, 3.1), facecolor="none")
    known = {name: {row.get(name) for row in rows} - {None} for name in ("rank", "perplexity")}
    panels = [name for name, values in known.items() if len(values) > (name == "rank")]
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

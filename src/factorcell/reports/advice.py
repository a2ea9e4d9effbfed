"""Advice on context columns as one page, with its two charts."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from factorcell.reports import elements
from factorcell.reports.charts import ACCENT, INK, LOSS, RULE, WIDTH, round_ticks, short, styled
from factorcell.reports.elements import escaped
from factorcell.reports.wording import CANNOT, GUESSED, advice_lead, advice_table, advised

Row = Mapping[str, Any]

AFTER = ("5", "10", "20", "all")  # tokens that the value is predicted from
HOW = (
    "Nothing is trained. Held-out texts are read by two n-gram models: one that knows the words before, and one that "
    "is also given the value. Least: the gain of a model that "
    "already infers from the text what a classifier can infer about the value. Most: the gain of the n-gram model, "
    "which remembers a few words and infers nothing. Expected: between them, where the gains of trained models were. "
    "By bias: the part that comes from more or less frequent words, which a softmax bias can learn. Added: the part "
    "that stronger columns do not already bring. A gain is the relative reduction of perplexity."
)
DETAILS = {
    "column": "",
    "perplexity_nothing": ".2f",
    "perplexity_knowing": ".2f",
    "most_error": ".2%",
    "most_by_bias": ".1%",
    "entropy": ".2f",
    "information": ".2f",
}


def page(name: str, found: Row) -> str:
    """Return the page of the advice on the table called `name`."""
    todo = "".join(
        f"<li><b>{escaped(row['column'])}</b>: {escaped(advised(row))}: {escaped(row['why'])}.</li>"
        for row in found["columns"]
    )
    caption = "Bars: from least to most. Dots: expected. Dashes: the part of the most that a softmax bias can learn."
    lines = [{"name": row["column"], **row} for row in found["columns"]]
    if len(lines) > 1:
        lines.append({"name": "all together", **found["all"]})
    gains = elements.chart(gains_expected(lines), "gains", "Expected gains of the columns", caption)
    caption = (
        "Accuracy of predicting the value from the first 5, 10 and 20 tokens of a text (pale dots) and from all of it "
        "(the darkest). Dashes: always choosing the most frequent value."
    )
    guesses = elements.chart(
        guessed(found["columns"]), "guessed", "Accuracy of guessing values by tokens read", caption
    )
    sections = [("What to do", f"<ul>{todo}</ul>"), ("What they could save", elements.grid(gains, guesses))]
    figures = elements.table(*advice_table(found)) + f"<p>{escaped(GUESSED)}.</p>"
    folded = elements.folded("Perplexity of the two models, and more", elements.table(found["columns"], DETAILS))
    sections.append(("All figures", figures + folded))
    sections.append(("How it was estimated", f"<p>{escaped(HOW)}</p><p>{escaped(CANNOT)}</p>"))
    return elements.document(
        f"Which context helps {name}?", sections, kicker="factorcell advise", lead=". ".join(advice_lead(found)) + "."
    )


@styled()
def gains_expected(rows: Sequence[Row]) -> Figure:
    """Draw gains of columns as bars from least to most, with the expected one.

    Rows: name, least, expected, most and, of one column, most_by_bias.
    """
    figure, axes = _lined([row["name"] for row in rows], "perplexity lower by (per cent)")
    for y, row in enumerate(rows):
        expected = 100 * row["expected"]
        axes.barh(y, 100 * (row["most"] - row["least"]), 0.25, 100 * row["least"], color=LOSS, alpha=0.35)
        if "most_by_bias" in row:
            axes.plot(100 * row["most_by_bias"], y, "|", color=LOSS, ms=10, mew=1.5)
        axes.plot(expected, y, "o", color=ACCENT, ms=6)
        axes.text(expected, y - 0.2, f"{expected:.1f}", ha="center", va="bottom", fontsize=8)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    round_ticks(axes.xaxis)
    return figure


@styled()
def guessed(rows: Sequence[Row]) -> Figure:
    """Draw the accuracy of predicting each column's value from the first 5, 10, 20 and all tokens, and its majority."""
    figure, axes = _lined([row["column"] for row in rows], "values predicted correctly (per cent of texts)")
    for y, row in enumerate(rows):
        places = [100 * float(row[f"accuracy_{after}"]) for after in AFTER]
        axes.plot(places, [y] * len(places), color=RULE, lw=1.5)
        shades = [to_rgba(ACCENT, alpha) for alpha in (0.3, 0.5, 0.75, 1.0)]
        axes.scatter(places, [y] * len(places), 36, shades, lw=0, zorder=3)
        axes.plot(100 * row["majority"], y, "|", color=INK, ms=11)
    axes.set_xlim(0, 102)
    round_ticks(axes.xaxis)
    return figure


def _lined(names: Sequence[object], title: str) -> tuple[Figure, Axes]:
    """Return a figure with a line for each name."""
    figure = Figure(figsize=(WIDTH, 0.75 + 0.36 * len(names)))
    axes = figure.subplots()
    axes.grid(axis="x")
    axes.set_ylim(len(names) - 0.5, -0.75)
    axes.set_yticks(range(len(names)), [short(name, 20) for name in names], color=INK)
    axes.set_title(title)
    return figure, axes

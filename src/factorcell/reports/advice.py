"""Advice on context columns as a table for the terminal and as one page, with its two charts."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from factorcell.reports import elements
from factorcell.reports.charts import ACCENT, INK, LOSS, MUTED, RULE, WIDTH
from factorcell.reports.elements import escaped
from factorcell.reports.wording import (
    CANNOT,
    GUESSED,
    advice_lead,
    advice_table,
    advised,
)

Row = Mapping[str, Any]

SHORT = 20  # letters of a name that fit beside a chart
AFTER = ("5", "10", "20", "all")  # tokens that the value is guessed from
HOW = (
    "Nothing is trained. Held-out texts are read by an n-gram model that knows the words before, by one that is also "
    "told the value, and by one that has to guess the value from the text so far. At least: what a perfect reader "
    "would still gain from being told, which is what a classifier can find out about the value from the text, spread "
    "over its tokens. At most: what the n-gram model gains, who remembers a few words and guesses nothing. Expected: "
    "between them, where trained models were found. By bias: the part that is words more or less frequent, which a "
    "softmax bias can learn. Added: the part that stronger columns do not bring already. A gain is by what share "
    "perplexity falls."
)


def page(name: str, found: Row) -> str:
    """The page of the advice on the table called `name`."""
    lines = "".join(
        f"<li><b>{escaped(row['column'])}</b>: {escaped(advised(row))}: {escaped(row['why'])}.</li>"
        for row in found["columns"]
    )
    note = (
        "The bar goes from the least to the most, the dot is expected. The dash: what of the most is a softmax bias's."
    )
    gains = elements.chart(gains_expected(_lines(found)), "gains", "Expected gains of the columns", note)
    note = (
        "How often the value is guessed right from the first 5, 10 and 20 tokens of a text (pale dots) and from all "
        "(the darkest). The dash: always naming the most frequent value."
    )
    guesses = elements.chart(guessed(found["columns"]), "guessed", "Accuracy of guessing values by tokens read", note)
    sections = [
        ("What to do", f"<ul>{lines}</ul>"),
        ("What they could save", f'<div class="grid">{gains}{guesses}</div>'),
    ]
    figures = _html(*advice_table(found)) + f"<p>{escaped(GUESSED)}.</p>"
    sections.append(("All figures", figures + _details(found["columns"])))
    sections.append(("How it was estimated", f"<p>{escaped(HOW)}</p><p>{escaped(CANNOT)}</p>"))
    return elements.document(
        f"Which context helps {name}?", sections, kicker="factorcell advise", lead=". ".join(advice_lead(found)) + "."
    )


def _lines(found: Row) -> Sequence[Row]:
    """The columns, and all of them together where there are several."""
    lines: list[Row] = [{"name": row["column"], **row} for row in found["columns"]]
    return [*lines, {"name": "all together", **found["all"]}] if len(lines) > 1 else lines


def _html(rows: Sequence[Row], names: Sequence[str]) -> str:
    names = [name for name in names if any(name in row for row in rows)]
    return elements.table(names, [[row.get(name) for name in names] for row in rows])


def _details(rows: Sequence[Row]) -> str:
    """The three readers, and other figures."""
    forms = {
        "nothing": ("perplexity_nothing", ".2f"),
        "inferring": ("perplexity_inferring", ".2f"),
        "knowing": ("perplexity_knowing", ".2f"),
        "standard error of the most": ("most_error", ".2%"),
        "by bias": ("most_by_bias", ".1%"),
        "nats of the value": ("entropy", ".2f"),
        "read off a text": ("information", ".2f"),
    }
    lines = []
    for row in rows:
        lines.append([row["column"], *(elements.formatted(row[key], form) for key, form in forms.values())])
    content = elements.table(("column", *forms), lines)
    return f"<details><summary>Perplexity of the three readers, and more</summary>{content}</details>"


def gains_expected(rows: Sequence[Row]) -> Figure:
    """Gains of columns as bars from least to most, with the expected one.

    Rows: name, least, expected, most and, of one column, most_by_bias.
    """
    figure = Figure(figsize=(WIDTH, 0.75 + 0.36 * len(rows)), facecolor="none")
    height = figure.get_figheight()
    axes = figure.add_axes((0.3, 0.32 / height, 0.66, 1 - 0.62 / height))
    for y, row in enumerate(rows):
        ends = 100 * float(row["least"]), 100 * float(row["most"])
        axes.plot(ends, (y, y), color=LOSS, alpha=0.35, lw=7, solid_capstyle="butt", zorder=2)
        if "most_by_bias" in row:
            axes.plot(100 * row["most_by_bias"], y, "|", color=LOSS, ms=10, mew=1.5, zorder=3)
        axes.plot(100 * row["expected"], y, "o", color=ACCENT, ms=6, zorder=4)
        axes.text(
            100 * row["expected"],
            y - 0.2,
            f"{100 * row['expected']:.1f}",
            ha="center",
            va="bottom",
            fontsize=8,
            color=INK,
        )
    _dress(axes)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set_ylim(len(rows) - 0.5, -0.75)
    axes.set_yticks(range(len(rows)), [_short(row["name"]) for row in rows], color=INK)
    axes.set_title("perplexity lower by (per cent)", loc="left", fontsize=9, color=MUTED, pad=6)
    return figure


def guessed(rows: Sequence[Row]) -> Figure:
    """Accuracy of guessing each column's value from the first 5, 10, 20 and all tokens, over its majority value."""
    figure = Figure(figsize=(WIDTH, 0.75 + 0.36 * len(rows)), facecolor="none")
    height = figure.get_figheight()
    axes = figure.add_axes((0.3, 0.32 / height, 0.66, 1 - 0.62 / height))
    for y, row in enumerate(rows):
        places = [100 * float(row[f"accuracy_{after}"]) for after in AFTER]
        axes.plot((min(places), max(places)), (y, y), color=RULE, lw=1.5, zorder=1)
        for place, alpha in zip(places, (0.3, 0.5, 0.75, 1.0), strict=True):
            axes.plot(place, y, "o", color=ACCENT, alpha=alpha, ms=6, mew=0, zorder=3)
        axes.plot(100 * row["majority"], y, "|", color=INK, ms=11, zorder=4)
    _dress(axes)
    axes.set_xlim(0, 102)
    axes.set_ylim(len(rows) - 0.5, -0.75)
    axes.set_yticks(range(len(rows)), [_short(row["column"]) for row in rows], color=INK)
    axes.set_title("values guessed right (per cent of texts)", loc="left", fontsize=9, color=MUTED, pad=6)
    return figure


def _short(name: object) -> str:
    text = str(name)
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


def _dress(axes: Axes) -> None:
    """The look of the other charts."""
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set(visible=True, color=RULE)
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED, pad=4)
    axes.tick_params(axis="y", labelsize=9, labelcolor=INK)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="x", color=RULE, lw=0.7)
    axes.set_axisbelow(True)

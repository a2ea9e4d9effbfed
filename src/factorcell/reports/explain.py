"""The page of `factorcell explain`: texts whose tokens are shaded by their log-likelihood ratio.

No information is in colours alone: tokens that are more probable in the first context have a bar above them, those
that are more probable in the second a bar below, and all values are also in tables.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from factorcell.evaluation.likelihood_ratios import STRENGTHS, strength
from factorcell.reports import elements
from factorcell.reports.charts import (
    ACCENT,
    CONTRAST,
    EXTRA_COLOURS,
    INK,
    RULE,
    WIDTH,
    add_legend,
    display_name,
    styled,
)
from factorcell.reports.wording import readable_token

Row = Mapping[str, Any]

FIRST_COLOUR, SECOND_COLOUR = CONTRAST, ACCENT  # colours of two contexts, blue and red in the figure of the paper
LINE_WIDTH = 56  # characters per line
# Dashes distinguish the curves in addition to colours.
DASHES = ("-", (0, (4, 1)), (0, (1.5, 0.8)), (0, (6, 1, 1.5, 1)), (0, (3, 2)), (0, (1, 2)))
# Font size in points at which a line fits: a character of DejaVu Sans Mono is 0.6 times as wide as its font size.
SIZE = 72 * (WIDTH - 0.4) / LINE_WIDTH / 0.63
STRIP_HEIGHT = 0.68  # height of a line of tokens with the curve above it, in inches

Line = list[tuple[int, float, str]]  # for each token: index in the text, centre on the line in characters, shown text

FULL_SHADE_NATS = 3.0  # log-likelihood ratio at which a token has the full shade
FULL_SHADE_OPACITY = 0.72  # so that text stays readable on the shade
TABLE_TOKENS = 12  # maximum number of tokens in the table of each context
MIN_TABLE_NATS = 0.1  # minimum ratio of a token in these tables
FIGURE_TEXTS = 20  # maximum number of texts in a figure; the tables have all texts
RATIO_NOTE = (
    "The log-likelihood ratio of a token is log p(token | preceding tokens, {first}) - log p(token | preceding tokens, "
    "{second}) in nats: at 0.7 the token is twice as probable given {first}, at 2.3 ten times. The ratios of a text, "
    "including its end (¶), add up to the ratio of the whole text."
)
POSTERIOR_NOTE = "Probability of each context after every token by Bayes' rule, with a uniform prior."


def explanation_page(name: str, rows: Sequence[Row], runs: int = 1, cautions: Sequence[str] = ()) -> str:
    """Return the page of `factorcell explain` for the model `name`.

    `rows` are the rows that `likelihood_ratios.explain` returns, with `model` added if there are several models.
    `runs` is the number of runs whose log-likelihoods were averaged.
    """
    between = list(rows[0]["posterior"])
    mean = f" All values are computed from the mean log likelihoods of {runs} runs." if runs > 1 else ""
    sections = []
    if len(between) == 2:
        ratio_note = elements.note(RATIO_NOTE.format(first=between[0], second=between[1]) + mean)
        sections.append(("Token by token", _legend(between) + "\n".join(map(_shaded_text, rows)) + ratio_note))
        sections.append(("Tokens with the largest ratios", _strongest(rows, between)))
    figure = running_posterior(rows[:FIGURE_TEXTS])
    chart = elements.chart(figure, "posterior", "Running posterior", POSTERIOR_NOTE + mean)
    sections.append(("Posterior of the contexts after each token", chart))
    sections.append(("All values", "".join(_values(row, f"Text {number}") for number, row in enumerate(rows, 1))))
    count = len({row["text"] for row in rows})
    contexts = f"{', '.join(between[:-1])} and {between[-1]}"
    lead = f"{count:,} {'text' if count == 1 else 'texts'}, scored given {contexts}."
    title = f"Explanations by {display_name(name)}"
    return elements.document(title, sections, kicker="factorcell explain", lead=lead, cautions=cautions)


def _legend(between: Sequence[str]) -> str:
    """Return the legend that explains the shades and bars of tokens."""
    first, second = (
        f'<span style="color: var(--ink); {_style(sign * FULL_SHADE_NATS)}">{elements.escape(name)}</span>'
        for sign, name in zip((1, -1), between, strict=True)
    )
    weak, clear, strong = (f"{level:g}" for level in STRENGTHS)
    return (
        f'<p class="muted">More probable given {first}: blue, with a bar above. More probable given {second}: orange, '
        f"with a bar below. Bars are thin from {weak} nats, thicker from {clear} and {strong}; the shade is full from "
        f"{FULL_SHADE_NATS:g} nats. Words in italics are out of vocabulary. Point at a token to see its ratio.</p>"
    )


def _shaded_text(row: Row) -> str:
    """Return a text with shaded tokens, followed by its total ratio; if there are several models, below its model."""
    gap = " " if row["tokenizer"] in ("word", "space") else ""
    head = f"<h3>{elements.escape(display_name(row['model']))}</h3>" if row.get("model") else ""
    return (
        f'{head}<p style="white-space: pre-wrap; line-height: 1.9; overflow-wrap: anywhere">'
        f"{gap.join(map(_shaded_token, row['tokens']))} "
        f'<span class="muted">{row["ratio"]:+.2f} nats in total</span></p>'
    )


def _shaded_token(token: Row) -> str:
    text = elements.escape(readable_token(token["token"]))
    kind = "" if token["known"] else "; out of vocabulary"
    content = text if token["known"] else f"<i>{text}</i>"
    return f'<span style="{_style(token["ratio"])}" title="{token["ratio"]:+.4f} nats{kind}">{content}</span>'


def _style(ratio: float) -> str:
    """Return the CSS for the shade and the bar of a ratio, readable in the light and in the dark theme."""
    rgb = ", ".join(str(round(255 * part)) for part in to_rgb(FIRST_COLOUR if ratio > 0 else SECOND_COLOUR))
    style = f"background: rgba({rgb}, {FULL_SHADE_OPACITY * min(1.0, abs(ratio) / FULL_SHADE_NATS):.3f})"
    if level := strength(ratio):
        style += f"; border-{'top' if level > 0 else 'bottom'}: {abs(level)}px solid rgb({rgb})"
    return style


def _strongest(rows: Sequence[Row], between: Sequence[str]) -> str:
    """Return for each of the two contexts a table of the tokens with the largest ratios in all texts."""
    source = "model" if rows[0].get("model") else "text"
    tokens = [
        {
            "token": readable_token(token["token"]),
            "after": _preceding(row, index),
            source: display_name(row.get("model", number)),
            "nats": token["ratio"],
        }
        for number, row in enumerate(rows, 1)
        for index, token in enumerate(row["tokens"])
    ]
    columns = {"token": "", "after": "", source: "", "nats": ".2f"}
    parts = []
    for sign, name in zip((1, -1), between, strict=True):
        side = [{**row, "nats": sign * row["nats"]} for row in tokens if sign * row["nats"] >= MIN_TABLE_NATS]
        side.sort(key=lambda row: -row["nats"])
        nothing = f"<p>No token has a ratio of {MIN_TABLE_NATS:g} nats or more.</p>"
        content = elements.table(side[:TABLE_TOKENS], columns) if side else nothing
        parts.append(f"<div><h3>{elements.escape(name)}</h3>{content}</div>")
    return elements.grid(*parts)


def _preceding(row: Row, index: int) -> str:
    """Return the last few tokens before a token."""
    gap, count = (" ", 4) if row["tokenizer"] in ("word", "space") else ("", 12)
    start = max(0, index - count)
    return "… " * (start > 0) + gap.join(readable_token(token["token"]) for token in row["tokens"][start:index])


def _values(row: Row, title: str) -> str:
    """Return a collapsible table of the values of every token of a text."""
    between = list(row["posterior"])
    forms = {"token": "", **{f"nats given {name}": ".3f" for name in between}}
    forms |= {"ratio": "+.3f"} if len(between) == 2 else {}
    forms |= {f"p({name})": ".3f" for name in between}
    cells = [
        {
            "token": readable_token(token["token"]),
            "ratio": token["ratio"],
            **{f"nats given {name}": token["nats"][name] for name in between},
            **{f"p({name})": token["posterior"][name] for name in between},
        }
        for token in row["tokens"]
    ]
    model = f", {display_name(row['model'])}" if row.get("model") else ""
    return elements.collapsible(title + model, elements.table(cells, forms))


@styled()
def running_posterior(rows: Sequence[Row]) -> Figure:
    """Draw the posterior of each context after every token of the texts, with the tokens below the curves.

    Each row is a text with tokens (token, posterior by context), tokenizer, posterior of the whole text, and optionally
    model. The contexts with the highest final posteriors (as many as `DASHES`) have distinct colours and dashes; all
    others are grey.
    """
    names = list(rows[0]["posterior"])
    ranked = sorted(names, key=lambda name: -max(float(row["posterior"][name]) for row in rows))
    highest = sorted(ranked[: len(DASHES)], key=names.index)
    palette = (FIRST_COLOUR, SECOND_COLOUR) if len(names) == 2 else EXTRA_COLOURS
    styles = dict(zip(highest, zip(palette, DASHES, strict=False), strict=False))
    figure, strips = _strips(rows)
    last_posterior: dict[str, float] = {}  # of each context, at the end of the line above
    for row, axes, line in strips:
        if line[0][0] == 0:  # the first line of a text begins with the uniform prior
            last_posterior = dict.fromkeys(names, 1 / len(names))
            axes.set_title(display_name(row.get("model", "")))
        for name in names:
            curve = [last_posterior[name], *(float(row["tokens"][index]["posterior"][name]) for index, *_ in line)]
            last_posterior[name] = curve[-1]
            colour, dashes = styles.get(name, (RULE, "-"))
            axes.plot([0.0, *(x for _, x, _ in line)], curve, color=colour, ls=dashes, lw=1.6)
        axes.set_ylim(-0.04, 1.04)
        axes.set_yticks([0, 1])
        axes.grid(axis="y")
    for name, (colour, dashes) in styles.items():
        figure.axes[0].plot([], [], color=colour, ls=dashes, label=name[:40])
    add_legend(figure)
    return figure


def _strips(rows: Sequence[Row]) -> tuple[Figure, list[tuple[Row, Axes, Line]]]:
    """Return a figure with empty axes for every line of the texts; the tokens of the line label the x axis."""
    lines = [(row, line) for row in rows for line in break_lines(row)]
    figure = Figure(figsize=(WIDTH, 0.4 + STRIP_HEIGHT * max(1, len(lines))))
    strips = []
    for (row, line), axes in zip(lines, figure.subplots(max(1, len(lines)), squeeze=False).flat, strict=False):
        axes.set_xlim(0, LINE_WIDTH)
        axes.set_xticks([x for _, x, _ in line], [text for *_, text in line])
        axes.tick_params("x", labelfontfamily="DejaVu Sans Mono", labelsize=SIZE, labelcolor=INK, pad=1)
        axes.tick_params("y", labelsize=6)
        strips.append((row, axes, line))
    return figure, strips


def break_lines(row: Row) -> list[Line]:
    """Break a text into lines of at most `LINE_WIDTH` monospaced characters, with spaces between words."""
    gap = 1 if row["tokenizer"] in ("word", "space") else 0
    lines: list[Line] = []
    end = float(LINE_WIDTH)
    for index, token in enumerate(row["tokens"]):
        text = readable_token(token["token"])[:LINE_WIDTH]
        width = max(1, sum(_width(letter) for letter in text))
        if end + width > LINE_WIDTH:
            lines.append([])
            end = 0.0
        lines[-1].append((index, end + width / 2, text))
        end += width + gap
    return lines


def _width(letter: str) -> int:
    """Return the number of columns that a character takes in a monospaced font."""
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1

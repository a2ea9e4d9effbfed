"""The page of explained texts.

Colour is never the only sign: a token that the first context makes likelier has a bar over it, the other one under it,
and every figure is in a table too.
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
LINE_WIDTH = 56  # letters of a line
DASHES = ("-", (0, (4, 1)), (0, (1.5, 0.8)), (0, (6, 1, 1.5, 1)), (0, (3, 2)), (0, (1, 2)))  # in addition to colours
SIZE = 72 * (WIDTH - 0.4) / LINE_WIDTH / 0.63  # points: a letter of DejaVu Sans Mono is 0.6 of its size wide
STRIP = 0.68  # inches of a line and its curve

Line = list[tuple[int, float, str]]  # tokens by their place in the text, where their middle is, and how they read

FULL = 3.0  # nats at which a token has the full shade
SHADE = 0.72  # opacity of the full shade, so that the letters stay readable on it
STRONGEST, FAINT = 12, 0.1  # tokens for each context in the table of the strongest ones, and the least of their nats
DRAWN = 20  # texts in a figure; the tables have all of them
RATIO = (
    "The figure of a token is log p(token | what is before it, {first}) - log p(token | what is before it, {second}), "
    "in nats: 0.7 makes it twice as likely, 2.3 ten times. The figures of a text, with its end (¶), add up to the "
    "difference of its scores."
)
POSTERIOR = "The probability of each context after every token by Bayes' rule, with equal probabilities at the start."


def explanation_page(name: str, rows: Sequence[Row], runs: int = 1, cautions: Sequence[str] = ()) -> str:
    """Return the page of explained texts.

    `rows` are those of `explain`, with `model` where there are several; `runs` were averaged.
    """
    between = list(rows[0]["posterior"])
    mean = f" Figures are means of the log likelihoods of {runs} runs." if runs > 1 else ""
    sections = []
    if len(between) == 2:
        how = elements.note(RATIO.format(first=between[0], second=between[1]) + mean)
        sections.append(("Token by token", _legend(between) + "\n".join(map(_spans, rows)) + how))
        sections.append(("The strongest tokens", _strongest(rows, between)))
    figure = running_posterior(rows[:DRAWN])
    chart = elements.chart(figure, "posterior", "Running posterior", POSTERIOR + mean)
    sections.append(("What the model believes so far", chart))
    sections.append(("All figures", "".join(_figures(row, f"Text {number}") for number, row in enumerate(rows, 1))))
    count = len({row["text"] for row in rows})
    listed = f"{', '.join(between[:-1])} and {between[-1]}"
    lead = f"{count:,} {'text' if count == 1 else 'texts'}, read given {listed}."
    title = f"What {display_name(name)} hears"
    return elements.document(title, sections, kicker="factorcell explain", lead=lead, cautions=cautions)


def _legend(between: Sequence[str]) -> str:
    """Explain shades and bars."""
    first, second = (
        f'<span style="color: var(--ink); {_style(sign * FULL)}">{elements.escape(name)}</span>'
        for sign, name in zip((1, -1), between, strict=True)
    )
    weak, clear, strong = (f"{level:g}" for level in STRENGTHS)
    return (
        f'<p class="muted">Likelier given {first}: blue, with a bar over it. Likelier given {second}: orange, '
        f"with a bar under it. Bars are thin from {weak} nats, thicker from {clear} and {strong}; the shade is full "
        f"from {FULL:g}. Words in italics are not in the vocabulary. A pointer over a token shows its nats.</p>"
    )


def _spans(row: Row) -> str:
    """Return a text with its tokens shaded, the model that read it and the sum."""
    gap = " " if row["tokenizer"] in ("word", "space") else ""
    head = f"<h3>{elements.escape(display_name(row['model']))}</h3>" if row.get("model") else ""
    return (
        f'{head}<p style="white-space: pre-wrap; line-height: 1.9; overflow-wrap: anywhere">'
        f'{gap.join(map(_span, row["tokens"]))} <span class="muted">{row["ratio"]:+.2f} nats in all</span></p>'
    )


def _span(token: Row) -> str:
    shown = elements.escape(readable_token(token["token"]))
    kind = "" if token["known"] else "; not in the vocabulary"
    content = shown if token["known"] else f"<i>{shown}</i>"
    return f'<span style="{_style(token["ratio"])}" title="{token["ratio"]:+.4f} nats{kind}">{content}</span>'


def _style(ratio: float) -> str:
    """Return shade and bar of a ratio, which can be seen in the light and in the dark theme."""
    rgb = ", ".join(str(round(255 * part)) for part in to_rgb(FIRST_COLOUR if ratio > 0 else SECOND_COLOUR))
    style = f"background: rgba({rgb}, {SHADE * min(1.0, abs(ratio) / FULL):.3f})"
    if power := strength(ratio):
        style += f"; border-{'top' if power > 0 else 'bottom'}: {abs(power)}px solid rgb({rgb})"
    return style


def _strongest(rows: Sequence[Row], between: Sequence[str]) -> str:
    """Return a table of the tokens with the largest ratios of all texts for each of the two contexts."""
    where = "model" if rows[0].get("model") else "text"
    found = [
        {
            "token": readable_token(token["token"]),
            "after": _before(row, place),
            where: display_name(row.get("model", number)),
            "nats": token["ratio"],
        }
        for number, row in enumerate(rows, 1)
        for place, token in enumerate(row["tokens"])
    ]
    columns = {"token": "", "after": "", where: "", "nats": ".2f"}
    parts = []
    for sign, name in zip((1, -1), between, strict=True):
        side = [{**row, "nats": sign * row["nats"]} for row in found if sign * row["nats"] >= FAINT]
        side.sort(key=lambda row: -row["nats"])
        content = elements.table(side[:STRONGEST], columns) if side else f"<p>No token of {FAINT:g} nats.</p>"
        parts.append(f"<div><h3>{elements.escape(name)}</h3>{content}</div>")
    return elements.grid(*parts)


def _before(row: Row, place: int) -> str:
    """Return the few tokens before one."""
    gap, most = (" ", 4) if row["tokenizer"] in ("word", "space") else ("", 12)
    start = max(0, place - most)
    return "… " * (start > 0) + gap.join(readable_token(token["token"]) for token in row["tokens"][start:place])


def _figures(row: Row, title: str) -> str:
    """Return every token of a text with its figures, folded away."""
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
    """Draw the probability of each context after every token of texts, above their tokens.

    Rows: tokens (token, posterior by name), unit, posterior of the whole text, model if any. The contexts that end
    highest, as many as there are `DASHES`, have a colour and dashes of their own; all others are grey.
    """
    names = list(rows[0]["posterior"])
    ranked = sorted(names, key=lambda name: -max(float(row["posterior"][name]) for row in rows))
    named = sorted(ranked[: len(DASHES)], key=names.index)
    looks = dict(
        zip(
            named,
            zip((FIRST_COLOUR, SECOND_COLOUR) if len(names) == 2 else EXTRA_COLOURS, DASHES, strict=False),
            strict=False,
        )
    )
    figure, strips = _strips(rows)
    before: dict[str, float] = {}
    for row, axes, line in strips:
        if line[0][0] == 0:
            before = dict.fromkeys(names, 1 / len(names))
            axes.set_title(display_name(row.get("model", "")))
        for name in names:
            curve = [before[name], *(float(row["tokens"][number]["posterior"][name]) for number, *_ in line)]
            before[name] = curve[-1]
            colour, dashes = looks.get(name, (RULE, "-"))
            axes.plot([0.0, *(place for _, place, _ in line)], curve, color=colour, ls=dashes, lw=1.6)
        axes.set_ylim(-0.04, 1.04)
        axes.set_yticks([0, 1])
        axes.grid(axis="y")
    for name, (colour, dashes) in looks.items():
        figure.axes[0].plot([], [], color=colour, ls=dashes, label=name[:40])
    add_legend(figure)
    return figure


def _strips(rows: Sequence[Row]) -> tuple[Figure, list[tuple[Row, Axes, Line]]]:
    """Return a figure with empty axes for every line of the rows; the tokens are below them."""
    lines = [(row, line) for row in rows for line in break_lines(row)]
    figure = Figure(figsize=(WIDTH, 0.4 + STRIP * max(1, len(lines))))
    strips = []
    for (row, line), axes in zip(lines, figure.subplots(max(1, len(lines)), squeeze=False).flat, strict=False):
        axes.set_xlim(0, LINE_WIDTH)
        axes.set_xticks([place for _, place, _ in line], [text for *_, text in line])
        axes.tick_params("x", labelfontfamily="DejaVu Sans Mono", labelsize=SIZE, labelcolor=INK, pad=1)
        axes.tick_params("y", labelsize=6)
        strips.append((row, axes, line))
    return figure, strips


def break_lines(row: Row) -> list[Line]:
    """Break a text into lines of at most `COLUMNS` letters of one width, with a space between words."""
    gap = 1 if row["tokenizer"] in ("word", "space") else 0
    lines: list[Line] = []
    end = float(LINE_WIDTH)
    for number, token in enumerate(row["tokens"]):
        text = readable_token(token["token"])[:LINE_WIDTH]
        width = max(1, sum(_width(letter) for letter in text))
        if end + width > LINE_WIDTH:
            lines.append([])
            end = 0.0
        lines[-1].append((number, end + width / 2, text))
        end += width + gap
    return lines


def _width(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1

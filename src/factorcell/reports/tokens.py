"""Charts of texts: rows of tokens go in, a matplotlib `Figure` comes out.

Texts are set in lines of `COLUMNS` letters of one width, as on a typewriter, so that a curve can run above its letters.
"""

import unicodedata
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from factorcell.evaluation.likelihood_ratios import strength
from factorcell.reports.charts import ACCENT, INK, LOSS, MUTED, OTHERS, RULE, WIDTH, Row, legend, titled
from factorcell.reports.wording import readable

FIRST, SECOND = LOSS, ACCENT  # colours of the two contexts; the paper's figure has blue and red
FULL = 3.0  # nats at which a token has the full shade
SHADE = 0.72  # of the full colour, so that the letters stay readable on it
COLUMNS = 56  # letters of a line
MARGIN = 0.08  # inches
COLUMN = (WIDTH - 2 * MARGIN) / COLUMNS
SIZE = 72 * COLUMN / 0.602 * 0.97  # points: a letter of DejaVu Sans Mono is 0.602 of its size wide
APART = 4  # letters between texts beside each other
LINE = 0.21  # inches from line to line of a text
CURVE = 0.42  # inches of a curve above its letters
TICK: dict[str, Any] = {"fontsize": 6, "ha": "right", "va": "center"}
DASHES = ("-", (0, (4, 1)), (0, (1.5, 0.8)), (0, (6, 1, 1.5, 1)), (0, (3, 2)), (0, (1, 2)))  # with the colours
MOST_NAMED = len(DASHES)  # values that are distinguished

Line = list[tuple[int, float, float, str]]  # of its tokens: which one, where it begins, how wide it is, how it reads


def ratio_text(rows: Sequence[Row], between: Sequence[str]) -> Figure:
    """Texts with every token shaded by its ratio between two contexts (TACL 2018, figure 2), one above the other.

    Rows: tokens (token, ratio, known), unit and, if several are compared, model. A bar over a token says that
    the first of `between` makes it likelier, one under it the second; it is the thicker, the stronger the ratio.
    """
    laid = [lines([token["token"] for token in row["tokens"]], row["unit"]) for row in rows]
    beside = not any(row.get("model") for row in rows)
    heads = [0.24 if row.get("model") else 0.06 for row in rows]
    flow = _flow(laid, beside)
    height = 0.48 + LINE * len(flow) + sum(heads[line[0][0]] for line in flow if line[0][1] is laid[line[0][0]][0])
    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    axes = _sheet(figure, 0, height)
    _scale(axes, between)
    top = 0.42
    for line in flow:
        number, first = line[0]
        if first is laid[number][0]:
            top += heads[number]
            if rows[number].get("model"):
                axes.text(0, top - 0.09, _plain(titled(rows[number]["model"])), fontsize=8.5, color=MUTED, va="center")
        for text, part in line:
            for place, begin, width, shown in part:
                _token(axes, rows[text]["tokens"][place], begin * COLUMN, top, width * COLUMN, shown)
        top += LINE
    return figure


def _token(axes: Axes, token: Row, left: float, top: float, width: float, shown: str) -> None:
    """One token in its box, shaded and marked by its ratio."""
    ratio, power = float(token["ratio"]), strength(token["ratio"])
    colour = FIRST if ratio > 0 else SECOND
    box = (left, top + 0.015), width, LINE - 0.05
    axes.add_patch(Rectangle(*box, facecolor=shade(ratio), lw=0))
    if power:
        edge = top + 0.015 if power > 0 else top + LINE - 0.035
        axes.plot([left, left + width], [edge, edge], color=colour, lw=0.6 * abs(power), solid_capstyle="butt")
    style = "normal" if token.get("known", True) else "italic"
    _letters(axes, left + width / 2, top + LINE / 2 - 0.01, shown, INK, style)


def shade(ratio: float) -> tuple[float, float, float, float]:
    """Red, green, blue and opacity of a ratio in nats."""
    return to_rgba(FIRST if ratio > 0 else SECOND, SHADE * min(1.0, abs(ratio) / FULL))


def _scale(axes: Axes, between: Sequence[str]) -> None:
    """What the shades mean: from the second context on the left to the first on the right."""
    steps, left, width = 24, WIDTH / 2 - MARGIN - 0.6, 1.2
    for step in range(steps):
        ratio = FULL * (2 * (step + 0.5) / steps - 1)
        axes.add_patch(Rectangle((left + step * width / steps, 0.06), width / steps, 0.1, facecolor=shade(ratio), lw=0))
    for place, name in ((-FULL, f"−{FULL:g}"), (0.0, "0 nats"), (FULL, f"+{FULL:g}")):
        axes.text(left + width * (place / FULL + 1) / 2, 0.26, name, fontsize=7, color=MUTED, ha="center", va="center")
    axes.text(left - 0.12, 0.11, f"▁ {_plain(_cut(between[1], 24))}", fontsize=7.5, color=INK, ha="right", va="center")
    axes.text(left + width + 0.12, 0.11, f"▔ {_plain(_cut(between[0], 24))}", fontsize=7.5, color=INK, va="center")


def running_posterior(rows: Sequence[Row]) -> Figure:
    """How probable each context is after every token of texts, above their letters; the bottom is 0, the top 1.

    Rows: tokens (token, posterior by name), unit, posterior of the whole text, model if any. The `MOST_NAMED` contexts
    that end highest have colour and dashes of their own, all others are grey.
    """
    names = list(rows[0]["posterior"])
    highest = {name: max(float(row["posterior"][name]) for row in rows) for name in names}
    ranked = sorted(names, key=lambda name: -highest[name])
    colours = (FIRST, SECOND) if len(names) == 2 else OTHERS
    palette = dict(zip(sorted(ranked[:MOST_NAMED], key=names.index), colours, strict=False))
    dashes: dict[str, Any] = dict(zip(palette, DASHES, strict=False))
    laid = [lines([token["token"] for token in row["tokens"]], row["unit"]) for row in rows]
    columns = max(1, min(len(palette), 60 // (max(map(len, palette)) + 5)))
    models = [titled(row.get("model", "")) for row in rows]
    figure, strips = _strips(laid, 0.14 + 0.19 * -(-len(palette) // columns), models)
    for row, own in zip(rows, strips, strict=True):
        before = [1 / len(names)] * len(names)
        for axes, line in own:
            places = [line[0][1], *(begin + width / 2 for _, begin, width, _ in line)]
            for index, name in enumerate(names):
                course = [before[index], *(float(row["tokens"][place]["posterior"][name]) for place, *_ in line)]
                before[index] = course[-1]
                look = {"color": palette.get(name, RULE), "lw": 1.6 if name in palette else 0.8}
                look |= {"ls": dashes.get(name, "-")}
                axes.plot(places, course, solid_joinstyle="round", zorder=3 if name in palette else 2, **look)
            for height in (0.0, 0.5, 1.0):
                axes.axhline(height, color=RULE, lw=0.6, zorder=1)
            for height in (0, 1):
                axes.annotate(f"{height}", (0, height), (-1.5, 0), textcoords="offset points", color=MUTED, **TICK)
            axes.set_ylim(-0.04, 1.04)
    marks = [
        Line2D([], [], color=colour, ls=dashes[name], lw=2.0, label=_plain(_cut(name, 40)))
        for name, colour in palette.items()
    ]
    legend(figure, marks, columns, top=1.0, gap=0.4, length=1.9)
    return figure


def _strips(
    laid: Sequence[Sequence[Line]], head: float, titles: Sequence[str]
) -> tuple[Figure, list[list[tuple[Axes, Line]]]]:
    """A figure with an empty axes for a curve over every line of texts, below `head` inches; the letters are there."""
    step, apart, titled_by = CURVE + LINE + 0.03, 0.13, [0.2 if title else 0.0 for title in titles]
    flow = _flow(laid, beside=not any(titles))
    begun = {line[0][0] for line in flow}
    height = head + step * len(flow) + sum(apart + titled_by[number] for number in begun)
    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    sheet, top = _sheet(figure, 0, height), head
    strips: list[list[tuple[Axes, Line]]] = [[] for _ in laid]
    for line in flow:
        number = line[0][0]
        if not strips[number]:
            if titles[number]:
                sheet.text(
                    0, top + titled_by[number] / 2, _plain(titles[number]), fontsize=8.5, color=MUTED, va="center"
                )
            top += titled_by[number]
        for text, part in line:
            for _, begin, width, shown in part:
                _letters(sheet, (begin + width / 2) * COLUMN, top + CURVE + LINE / 2 - 0.02, shown, INK)
            begin, end = part[0][1], part[-1][1] + part[-1][2]
            left, wide = (MARGIN + begin * COLUMN) / WIDTH, (end - begin) * COLUMN / WIDTH
            axes = figure.add_axes((left, 1 - (top + CURVE) / height, wide, CURVE / height))
            axes.axis("off")
            axes.set_xlim(begin, end)
            strips[text].append((axes, part))
        top += step + (apart if len(strips[number]) == len(laid[number]) else 0.0)
    return figure, strips


def _flow(laid: Sequence[Sequence[Line]], beside: bool) -> list[list[tuple[int, Line]]]:
    """The lines of texts from top to bottom; `beside`: texts of one line stand beside each other where they fit."""
    flow: list[list[tuple[int, Line]]] = []
    for number, own in enumerate(laid):
        if beside and flow and len(own) == 1 and len(laid[flow[-1][-1][0]]) == 1:
            begin = flow[-1][-1][1][-1][1] + flow[-1][-1][1][-1][2] + APART
            if begin + own[0][-1][1] + own[0][-1][2] <= COLUMNS:
                flow[-1].append((number, [(place, begin + left, width, text) for place, left, width, text in own[0]]))
                continue
        flow += [[(number, line)] for line in own]
    return flow


def _sheet(figure: Figure, top: float, bottom: float) -> Axes:
    """Axes over the whole figure but its margins, in inches from its top left corner."""
    axes = figure.add_axes((MARGIN / WIDTH, 0, 1 - 2 * MARGIN / WIDTH, 1))
    axes.axis("off")
    axes.set_xlim(0, WIDTH - 2 * MARGIN)
    axes.set_ylim(bottom, top)
    return axes


def _letters(axes: Axes, x: float, y: float, shown: str, colour: str, style: str = "normal") -> None:
    look: dict[str, Any] = {"family": "DejaVu Sans Mono", "size": SIZE, "color": colour, "style": style}
    axes.text(x, y, _plain(shown), ha="center", va="center", **look)


def _plain(text: str) -> str:
    """`text` whose dollars begin no formula."""
    return text.replace("$", r"\$")


def lines(tokens: Sequence[str], unit: str) -> list[Line]:
    """Tokens set in lines of at most `COLUMNS` letters, broken between words; words have a space between them."""
    gap = 1 if unit in ("word", "space") else 0
    laid: list[Line] = [[]]
    for place, token in enumerate(tokens):
        shown = _cut(readable(token), COLUMNS)
        begin = laid[-1][-1][1] + laid[-1][-1][2] + gap if laid[-1] else 0.0
        if begin + _columns(shown) > COLUMNS:
            laid.append(_carried(laid[-1], bool(gap)))
            begin = laid[-1][-1][1] + laid[-1][-1][2] + gap if laid[-1] else 0.0
        laid[-1].append((place, begin, float(_columns(shown)), shown))
    return [line for line in laid if line]


def _carried(line: Line, words: bool) -> Line:
    """What of a full line of letters goes to the next: the word that has begun, unless it fills half of the line."""
    spaces = [index for index, (*_, shown) in enumerate(line) if not shown.strip()]
    if words or not spaces or line[spaces[-1]][1] < COLUMNS / 2:
        return []
    carried = line[spaces[-1] + 1 :]
    del line[spaces[-1] + 1 :]
    return [(place, begin - carried[0][1], width, shown) for place, begin, width, shown in carried]


def _columns(text: str) -> int:
    """How many letters of a typewriter are as wide as the text."""
    marks = [mark for mark in text if unicodedata.category(mark) not in ("Mn", "Me", "Cf")]
    return max(1, sum(2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in marks))


def _cut(text: str, most: int) -> str:
    """`text` without its end, where it is wider than `most` letters."""
    kept = len(text)
    while kept and _columns(text[:kept]) > most - (kept < len(text)):
        kept -= 1
    return text[:kept] + ("…" if kept < len(text) else "")

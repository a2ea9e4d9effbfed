"""The page of `factorcell explain`: texts whose tokens are shaded by their log-likelihood ratio.

Readers who cannot distinguish the colours lose no information. A token that is more probable in the first context has a
bar above it, a token that is more probable in the second context has a bar below it, and tables list all values.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from factorcell.evaluation.explaining.likelihood_ratios import STRENGTHS, has_evidence, strength, with_evidence
from factorcell.reports import elements
from factorcell.reports.charts import (
    EXTRA_COLOURS,
    HIGHER,
    INK,
    LOWER,
    RULE,
    WIDTH,
    add_legend,
    display_name,
    styled,
)
from factorcell.reports.wording import readable_token, token_separator

Row = Mapping[str, Any]

LINE_WIDTH = 56  # characters per line
# Dashes distinguish the curves in addition to colours.
DASHES = ("-", (0, (4, 1)), (0, (1.5, 0.8)), (0, (6, 1, 1.5, 1)), (0, (3, 2)), (0, (1, 2)))
# Font size in points at which a line fits: a character of DejaVu Sans Mono is 0.6 times as wide as its font size.
FONT_SIZE = 72 * (WIDTH - 0.4) / LINE_WIDTH / 0.63
STRIP_HEIGHT = 0.68  # height of a line of tokens with the curve above it, in inches


class PlacedToken(NamedTuple):
    """A token on a line: its index in the text, the place of its centre in characters, and the text that is shown."""

    token_index: int
    centre: float
    text: str


Line = list[PlacedToken]

FULL_SHADE_NATS = 3.0  # log-likelihood ratio at which a token has the full shade
FULL_SHADE_OPACITY = 0.72  # low enough that text on the shade stays readable
TABLE_TOKENS = 12  # maximum number of tokens in the table of each context
MIN_TABLE_NATS = 0.1  # minimum ratio of a token in the table of a context
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
    contexts = list(rows[0]["posterior"])
    mean_note = f" All values are computed from the mean log likelihoods of {runs} runs." if runs > 1 else ""
    sections = []
    if len(contexts) == 2:
        first, second = contexts
        ratio_note = elements.note(RATIO_NOTE.format(first=first, second=second) + mean_note)
        sections.append(("Token by token", context_legend(contexts) + "\n".join(map(shaded_text, rows)) + ratio_note))
        sections.append(("Tokens with the largest ratios", _strongest_tokens(rows, contexts)))
    figure = running_posterior(rows[:FIGURE_TEXTS])
    chart = elements.chart(figure, "posterior", "Running posterior", POSTERIOR_NOTE + mean_note)
    sections.append(("Posterior of the contexts after each token", chart))
    tables = [_value_table(row, f"Text {number}") for number, row in enumerate(rows, 1)]
    sections.append(("All values", "".join(tables)))
    text_count = len({row["text"] for row in rows})
    *other_contexts, last_context = contexts
    listing = f"{', '.join(other_contexts)} and {last_context}"
    lead = f"{text_count:,} {'text' if text_count == 1 else 'texts'}, scored given {listing}."
    title = f"Explanations by {display_name(name)}"
    return elements.document(
        title, sections, kicker="factorcell explain", lead=lead, figures=_key_figures(rows), cautions=cautions
    )


def _key_figures(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the most probable context of each text, and with two contexts the ratio of the whole text.

    If tokens of a text have no evidence, there are also the ratio and the probability without these tokens.
    """
    figures = []
    for number, row in enumerate(rows, 1):
        text = f"text {number}" if len(rows) > 1 else "the text"
        best = max(row["posterior"], key=row["posterior"].get)
        figures.append((f"{row['posterior'][best]:.1%}", f"probability of {best} given {text}"))
        if len(row["posterior"]) == 2:
            first, second = row["posterior"]
            figures.append((_signed(row["ratio"]), f"nats: {first} against {second}, {text}"))
            if not all(map(has_evidence, row["tokens"])):
                ratio, probability = with_evidence(row)
                best, share = (first, probability) if ratio > 0 else (second, 1 - probability)
                without = f"{text}, without the tokens without evidence"
                figures.append((f"{share:.1%}", f"probability of {best} given {without}"))
                figures.append((_signed(ratio), f"nats: {first} against {second}, {without}"))
    return figures


def _signed(ratio: float) -> str:
    return f"{ratio:+.2f}".replace("-", "−")


def context_legend(contexts: Sequence[str]) -> str:
    """Return the legend that explains the shades and bars of tokens."""
    first, second = (
        f'<span style="color: var(--ink); {_style(sign * FULL_SHADE_NATS)}">{elements.escape(name)}</span>'
        for sign, name in zip((1, -1), contexts, strict=True)
    )
    weak, clear, strong = (f"{level:g}" for level in STRENGTHS)
    return (
        f'<p class="muted">More probable given {first}: blue, with a bar above. More probable given {second}: orange, '
        f"with a bar below. Bars are thin from {weak} nats, thicker from {clear} and {strong}; the shade is full from "
        f"{FULL_SHADE_NATS:g} nats. Words in italics are out of vocabulary. Grey words have no evidence: training saw "
        "them in none of the contexts. Point at a token to see its ratio.</p>"
    )


def shaded_text(row: Row) -> str:
    """Return a text with shaded tokens, then its total ratio; if there are several models, the model is the heading."""
    separator = token_separator(row["tokenizer"])
    heading = f"<h3>{elements.escape(display_name(row['model']))}</h3>" if row.get("model") else ""
    return (
        f'{heading}<p style="white-space: pre-wrap; line-height: 1.9; overflow-wrap: anywhere">'
        f"{separator.join(map(_shaded_token, row['tokens']))} "
        f'<span class="muted">{row["ratio"]:+.2f} nats in total</span></p>'
    )


def _shaded_token(token: Row) -> str:
    text = elements.escape(readable_token(token["token"]))
    title = f"{token['ratio']:+.4f} nats"
    if not token["known"]:
        text, title = f"<i>{text}</i>", f"{title}; out of vocabulary"
    if not has_evidence(token):
        return f'<span class="muted" title="{title}; no evidence">{text}</span>'
    return f'<span style="{_style(token["ratio"])}" title="{title}">{text}</span>'


def _style(ratio: float) -> str:
    """Return the CSS for the shade and the bar of a ratio, readable in the light and in the dark theme."""
    colour = HIGHER if ratio > 0 else LOWER
    rgb = ", ".join(str(round(255 * channel)) for channel in to_rgb(colour))
    opacity = FULL_SHADE_OPACITY * min(1.0, abs(ratio) / FULL_SHADE_NATS)
    style = f"background: rgba({rgb}, {opacity:.3f})"
    if level := strength(ratio):
        style += f"; border-{'top' if level > 0 else 'bottom'}: {abs(level)}px solid rgb({rgb})"
    return style


def _strongest_tokens(rows: Sequence[Row], contexts: Sequence[str]) -> str:
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
        if has_evidence(token)
    ]
    columns = {"token": "", "after": "", source: "", "nats": ".2f"}
    tables = []
    for sign, context in zip((1, -1), contexts, strict=True):
        strong = [{**token, "nats": sign * token["nats"]} for token in tokens if sign * token["nats"] >= MIN_TABLE_NATS]
        strong.sort(key=lambda token: -token["nats"])
        content = f"<p>No token with evidence has a ratio of {MIN_TABLE_NATS:g} nats or more.</p>"
        if strong:
            content = elements.table(strong[:TABLE_TOKENS], columns)
        tables.append(f"<div><h3>{elements.escape(context)}</h3>{content}</div>")
    return elements.grid(*tables)


def _preceding(row: Row, index: int) -> str:
    """Return the last few tokens before a token."""
    separator = token_separator(row["tokenizer"])
    count = 4 if separator else 12
    start = max(0, index - count)
    text = separator.join(readable_token(token["token"]) for token in row["tokens"][start:index])
    return f"… {text}" if start > 0 else text


def _value_table(row: Row, title: str) -> str:
    """Return a collapsible table of the nats, the ratio and the posterior of every token of a text."""
    contexts = list(row["posterior"])
    formats = {"token": "", **{f"nats given {context}": ".3f" for context in contexts}}
    if len(contexts) == 2:
        formats["ratio"] = "+.3f"
    formats |= {f"p({context})": ".3f" for context in contexts}
    cells = [
        {
            "token": readable_token(token["token"]),
            "ratio": token.get("ratio"),
            **{f"nats given {context}": token["nats"][context] for context in contexts},
            **{f"p({context})": token["posterior"][context] for context in contexts},
        }
        for token in row["tokens"]
    ]
    model = f", {display_name(row['model'])}" if row.get("model") else ""
    return elements.collapsible(title + model, elements.table(cells, formats))


@styled()
def running_posterior(rows: Sequence[Row]) -> Figure:
    """Draw the posterior of each context after every token of the texts, with the tokens below the curves.

    Each row is a text with tokens (token, posterior by context), tokenizer, posterior of the whole text, and optionally
    model. The contexts with the highest final posteriors have distinct colours and dashes; if there are more contexts
    than `DASHES`, the others are grey.
    """
    contexts = list(rows[0]["posterior"])
    ranked = sorted(contexts, key=lambda context: -max(float(row["posterior"][context]) for row in rows))
    highest = sorted(ranked[: len(DASHES)], key=contexts.index)
    palette = (HIGHER, LOWER) if len(contexts) == 2 else EXTRA_COLOURS
    styles = dict(zip(highest, zip(palette, DASHES, strict=False), strict=False))
    figure, strips = _empty_strips(rows)
    last_posterior: dict[str, float] = {}  # of each context, at the end of the line above
    for row, axes, line in strips:
        is_first_line = line[0].token_index == 0
        if is_first_line:
            last_posterior = dict.fromkeys(contexts, 1 / len(contexts))  # the uniform prior
            axes.set_title(display_name(row.get("model", "")))
        for context in contexts:
            posteriors = [float(row["tokens"][token.token_index]["posterior"][context]) for token in line]
            colour, dashes = styles.get(context, (RULE, "-"))
            x, y = [0.0, *(token.centre for token in line)], [last_posterior[context], *posteriors]
            axes.plot(x, y, color=colour, ls=dashes, lw=1.6)
            last_posterior[context] = posteriors[-1]
        axes.set_ylim(-0.04, 1.04)
        axes.set_yticks([0, 1])
        axes.grid(axis="y")
    first_axes, *_ = figure.axes
    for context, (colour, dashes) in styles.items():
        first_axes.plot([], [], color=colour, ls=dashes, label=context[:40])  # an entry of the legend
    add_legend(figure)
    return figure


def _empty_strips(rows: Sequence[Row]) -> tuple[Figure, list[tuple[Row, Axes, Line]]]:
    """Return a figure with empty axes for every line of the texts; the tokens of the line label the x axis."""
    lines = [(row, line) for row in rows for line in break_lines(row)]
    figure = Figure(figsize=(WIDTH, 0.4 + STRIP_HEIGHT * max(1, len(lines))))
    strips = []
    for (row, line), axes in zip(lines, figure.subplots(max(1, len(lines)), squeeze=False).flat, strict=False):
        axes.set_xlim(0, LINE_WIDTH)
        axes.set_xticks([token.centre for token in line], [token.text for token in line])
        axes.tick_params("x", labelfontfamily="DejaVu Sans Mono", labelsize=FONT_SIZE, labelcolor=INK, pad=1)
        axes.tick_params("y", labelsize=6)
        strips.append((row, axes, line))
    return figure, strips


def break_lines(row: Row) -> list[Line]:
    """Break a text into lines of at most `LINE_WIDTH` monospaced characters, with spaces between words."""
    separator_width = len(token_separator(row["tokenizer"]))
    lines: list[Line] = []
    start = float(LINE_WIDTH)  # of the next token; the first token begins a new line
    for index, token in enumerate(row["tokens"]):
        text = readable_token(token["token"])[:LINE_WIDTH]
        width = max(1, sum(_width(character) for character in text))
        if start + width > LINE_WIDTH:
            lines.append([])
            start = 0.0
        lines[-1].append(PlacedToken(index, start + width / 2, text))
        start += width + separator_width
    return lines


def _width(character: str) -> int:
    """Return the number of columns that a character takes in a monospaced font."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

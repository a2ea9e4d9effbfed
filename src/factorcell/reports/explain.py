"""Texts explained, as one page.

Colour is never the only sign: a token that the first context makes likelier has a bar over it, the other one under it,
and every figure is in a table too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.evaluation.likelihood_ratios import STRENGTHS, strength
from factorcell.reports import elements, tokens
from factorcell.reports.charts import titled
from factorcell.reports.tokens import FULL, SHADE
from factorcell.reports.wording import readable

Row = Mapping[str, Any]

STRONGEST, FAINT = 12, 0.1  # tokens in the table of the strongest of either side, each of so many nats
DRAWN = 20  # texts in a figure; the page has all of them
RATIO = (
    "The figure of a token is log p(token | what is before it, {first}) less the same given {second}, in nats: "
    "0.7 makes it twice as likely, 2.3 ten times. Those of a text, its end (¶) included, add up to the difference of "
    "its scores."
)
POSTERIOR = "The probability of each context after every token, by Bayes' rule, all being equally likely before."
MEAN = " Figures are means of the log likelihoods of {count} runs."


def explanation(
    name: str, rows: Sequence[Row], words: Sequence[Row] = (), runs: int = 1, cautions: Sequence[str] = ()
) -> str:
    """The page of explained texts, `rows` as of `explain`, with `model` where there are several.

    `words` are those of `raised` that are to be shown; `runs` is how many were averaged; `cautions` come first.
    """
    between = list(rows[0]["posterior"])
    mean = MEAN.format(count=runs) if runs > 1 else ""
    sections = []
    if len(between) == 2:
        how = RATIO.format(first=between[0], second=between[1]) + mean
        sections.append(
            ("Token by token", f"{_legend(between)}{_texts(rows)}<p class='muted'>{elements.escaped(how)}</p>")
        )
        sections.append(("The strongest tokens", _strongest(rows, between)))
    if words:
        sections.append(("Words raised and lowered", _words(words, between)))
    figure = tokens.running_posterior(rows[:DRAWN])
    chart = elements.chart(figure, "posterior", "Running posterior", POSTERIOR + mean)
    sections.append(("What the model believes so far", chart))
    if len(between) == 2:
        figure = tokens.ratio_text(rows[:DRAWN], between)
        alt = f"Texts with tokens shaded by the ratio between {between[0]} and {between[1]}"
        sections.append(("As a figure", elements.chart(figure, "ratios", alt)))
    sections.append(("All figures", _all(rows, between)))
    count = len(dict.fromkeys(row["text"] for row in rows))
    lead = f"{count:,} {'text' if count == 1 else 'texts'}, read given {_listed(between)}."
    title = f"What {titled(name)} hears"
    return elements.document(title, sections, kicker="factorcell explain", lead=lead, cautions=cautions)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _legend(between: Sequence[str]) -> str:
    """What shades and bars mean."""
    parts = [
        f'<span style="color: var(--ink); {_style(sign * FULL)}">{elements.escaped(name)}</span>'
        for sign, name in zip((1, -1), between, strict=True)
    ]
    weak, clear, strong = (f"{level:g}" for level in STRENGTHS)
    return (
        f'<p class="muted">Likelier given {parts[0]}: blue, with a bar over it. Likelier given {parts[1]}: orange, '
        f"with a bar under it. Bars are thin from {weak} nats, thicker from {clear} and {strong}; the shade is full "
        f"from {FULL:g}. Words in italics are not in the vocabulary. A pointer over a token shows its nats.</p>"
    )


def _texts(rows: Sequence[Row]) -> str:
    return "\n".join(_spans(row) for row in rows)


def _spans(row: Row) -> str:
    """One text as spans, with the model that read it and the sum."""
    gap = " " if row["unit"] in ("word", "space") else ""
    spans = gap.join(_span(token) for token in row["tokens"])
    head = f"<h3>{elements.escaped(titled(row['model']))}</h3>" if row.get("model") else ""
    return (
        f'{head}<p style="white-space: pre-wrap; line-height: 1.9; overflow-wrap: anywhere">{spans} '
        f'<span class="muted">{row["ratio"]:+.2f} nats in all</span></p>'
    )


def _span(token: Row) -> str:
    shown = elements.escaped(readable(token["token"]))
    kind = "" if token["known"] else "; not in the vocabulary"
    content = shown if token["known"] else f"<i>{shown}</i>"
    return f'<span style="{_style(token["ratio"])}" title="{token["ratio"]:+.4f} nats{kind}">{content}</span>'


def _style(ratio: float) -> str:
    """Shade and bar of a ratio, which show on light and on dark paper."""
    red, green, blue, _ = (round(255 * part) for part in tokens.shade(ratio))
    opacity = SHADE * min(1.0, abs(ratio) / FULL)
    style = f"background: rgba({red}, {green}, {blue}, {opacity:.3f})"
    if power := strength(ratio):
        style += f"; border-{'top' if power > 0 else 'bottom'}: {abs(power)}px solid rgb({red}, {green}, {blue})"
    return style


def _strongest(rows: Sequence[Row], between: Sequence[str]) -> str:
    """The tokens with the largest ratios of all texts, a table for each of the two contexts."""
    parts = []
    for sign, name in zip((1, -1), between, strict=True):
        found = []
        for number, row in enumerate(rows, 1):
            for place, token in enumerate(row["tokens"]):
                if sign * token["ratio"] >= FAINT:
                    where = row.get("model", str(number))
                    found.append((sign * token["ratio"], readable(token["token"]), _before(row, place), where))
        found.sort(key=lambda entry: -entry[0])
        cells = [
            (token, lead, str(titled(where)), elements.formatted(ratio, ".2f"))
            for ratio, token, lead, where in found[:STRONGEST]
        ]
        header = ("token", "after", "model" if rows[0].get("model") else "text", "nats")
        content = elements.table(header, cells) if cells else f"<p>No token of {FAINT:g} nats.</p>"
        parts.append(f"<div><h3>{elements.escaped(name)}</h3>{content}</div>")
    return f'<div class="grid">{"".join(parts)}</div>'


def _before(row: Row, place: int) -> str:
    """The few tokens before one."""
    gap, most = (" ", 4) if row["unit"] in ("word", "space") else ("", 12)
    start = max(0, place - most)
    return "… " * (start > 0) + gap.join(readable(token["token"]) for token in row["tokens"][start:place])


def _words(words: Sequence[Row], between: Sequence[str]) -> str:
    """The words most raised by each of the two contexts."""
    parts = []
    for sign, name in zip((1, -1), between, strict=True):
        own = sorted((word for word in words if sign * word["ratio"] > 0), key=lambda word: -abs(word["ratio"]))
        cells = [
            (
                readable(word["token"]),
                elements.formatted(abs(word["ratio"]), ".2f"),
                elements.formatted(word["count"], ",.1f"),
            )
            for word in own
        ]
        parts.append(
            f"<div><h3>{elements.escaped(name)}</h3>{elements.table(('word', 'nats', 'expected'), cells)}</div>"
        )
    note = (
        '<p class="muted">Over all places of these texts, and all words that could stand there: the mean ratio of a '
        "word between the two contexts, each place weighted by how likely the word is in it, and how often it is "
        "expected in all.</p>"
    )
    return f'{note}<div class="grid">{"".join(parts)}</div>'


def _all(rows: Sequence[Row], between: Sequence[str]) -> str:
    """Every token of every text with its figures, folded away."""
    parts = []
    for number, row in enumerate(rows, 1):
        title = f"Text {number}" + (f", {titled(row['model'])}" if row.get("model") else "")
        ratio = ("ratio",) if len(between) == 2 else ()
        header = ("token", *(f"nats given {name}" for name in between), *ratio, *(f"p({name})" for name in between))
        cells = [
            (
                readable(token["token"]),
                *(elements.formatted(token["nats"][name], ".3f") for name in between),
                *(elements.formatted(token["ratio"], "+.3f") for _ in ratio),
                *(elements.formatted(token["posterior"][name], ".3f") for name in between),
            )
            for token in row["tokens"]
        ]
        parts.append(f"<details><summary>{elements.escaped(title)}</summary>{elements.table(header, cells)}</details>")
    return "".join(parts)

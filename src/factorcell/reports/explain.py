"""The page of `factorcell explain`: texts whose tokens are shaded by their log-likelihood ratio.

Bars above and below the tokens show the signs to readers who cannot distinguish the colours.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.colors import to_rgb

from factorcell.evaluation.explaining.likelihood_ratios import STRENGTHS, has_evidence, strength, with_evidence
from factorcell.reports.charts import HIGHER, LOWER, truncate, word_bars
from factorcell.reports.page import Chart, Page, Table, make_table
from factorcell.reports.wording import readable_token, token_separator

Row = Mapping[str, Any]

FULL_SHADE_NATS = 3.0  # log-likelihood ratio at which a token has the full shade
FULL_SHADE_OPACITY = 0.72  # low enough that text on the shade stays readable
MIN_NATS = 0.1  # smallest sum of ratios of a word in a chart
WORD_COUNT = 10  # tokens in the chart of each model that favour the first context, and that favour the second
RATIO_REMARKS = (
    "the log-likelihood ratio of a token is log p(token | preceding tokens, {first}) - log p(token | preceding tokens, "
    "{second}) in nats; the ratios of a text, including its end (¶), add up to the ratio of the whole text",
    f"bars are thin from {STRENGTHS[0]:g} nats, thicker from {STRENGTHS[1]:g} and {STRENGTHS[2]:g}; the shade is full "
    f"from {FULL_SHADE_NATS:g} nats",
    "words in italics are out of vocabulary; grey words have no evidence: training saw them in none of the contexts",
)
POSTERIOR_REMARK = "posteriors are computed by Bayes' rule with a uniform prior"


def explanation_page(name: str, rows: Sequence[Row], cautions: Sequence[str] = ()) -> str:
    """Return the page of `factorcell explain` for the model `name`."""
    contexts = list(rows[0]["posterior"])
    rows_by_model: dict[str, list[Row]] = {}
    for row in rows:
        rows_by_model.setdefault(row.get("model", ""), []).append(row)
    page = Page(f"Explanations by {name}", "factorcell explain", f"Compared: {', '.join(contexts)}.")
    page.add_findings(cautions)
    texts = _shaded_texts(rows)
    if texts:
        first, second = contexts
        page.remarks += [remark.format(first=first, second=second) for remark in RATIO_REMARKS]
        title = f"Words that favour {first} (right) or {second} (left), nats"
        page.add("Evidence", list(word_charts(rows_by_model, title)))
    page.add("Probability of each context", tables=[_posterior_table(rows, contexts)])
    page.add("All tokens", tables=list(map(_value_table, rows)))
    page.remarks.append(POSTERIOR_REMARK)
    return page.render("explain.html", legend=_shade_legend(contexts), texts=texts)


def _posterior_table(rows: Sequence[Row], contexts: Sequence[str]) -> Table | None:
    ratio, supported_ratio = "ratio in nats", "without words without evidence"
    lines = []
    for row in rows:
        has_gaps = "ratio" in row and not all(map(has_evidence, row["tokens"]))
        line = {"text": row["text"], "model": row.get("model"), **row["posterior"], ratio: row.get("ratio")}
        lines.append({**line, supported_ratio: with_evidence(row)[0] if has_gaps else None})
    formats = {"text": "", "model": "", **dict.fromkeys(contexts, ".1%"), ratio: "+.2f", supported_ratio: "+.2f"}
    return make_table(lines, formats)


def _text_name(row: Row) -> str:
    return truncate(row["text"], 40) + (f", {row['model']}" if row.get("model") else "")


def _shade_legend(contexts: Sequence[str]) -> list[Row]:
    signs = zip(contexts, (1, -1), strict=False)
    return [{"name": name, "style": f"color: var(--ink); {_style(sign * FULL_SHADE_NATS)}"} for name, sign in signs]


def _shaded_texts(rows: Sequence[Row]) -> list[Row]:
    """Return the tokens of each text with their shades, for the templates; empty with more than two contexts."""
    return [
        {
            "model": row.get("model", ""),
            "separator": token_separator(row["tokenizer"]),
            "tokens": list(map(_shaded_token, row["tokens"])),
            "total": f"{row['ratio']:+.2f} nats in total",
        }
        for row in rows
        if "ratio" in row
    ]


def _shaded_token(token: Row) -> Row:
    """Return the text of a token, its title and its CSS; a token without evidence has no CSS."""
    title = f"{token['ratio']:+.4f} nats" + ("" if token["known"] else "; out of vocabulary")
    style = _style(token["ratio"]) if has_evidence(token) else ""
    title += "" if style else "; no evidence"
    return {"text": readable_token(token["token"]), "title": title, "style": style, "is_known": token["known"]}


def _style(ratio: float) -> str:
    """Return the CSS for the shade and the bar of a ratio, readable in the light and in the dark theme."""
    colour = HIGHER if ratio > 0 else LOWER
    rgb = ", ".join(str(round(255 * channel)) for channel in to_rgb(colour))
    opacity = FULL_SHADE_OPACITY * min(1.0, abs(ratio) / FULL_SHADE_NATS)
    style = f"background: rgba({rgb}, {opacity:.3f})"
    if level := strength(ratio):
        style += f"; border-{'top' if level > 0 else 'bottom'}: {abs(level)}px solid rgb({rgb})"
    return style


def word_charts(rows_by_model: Mapping[str, Sequence[Row]], title: str) -> Iterator[Chart]:
    """Yield for each model a chart of the tokens with evidence that have the largest sums of ratios in all texts."""
    for model, rows in rows_by_model.items():
        totals: dict[str, float] = defaultdict(float)
        for token in filter(has_evidence, itertools.chain.from_iterable(row["tokens"] for row in rows)):
            totals[readable_token(token["token"])] += token["ratio"]
        ranked = sorted(totals.items(), key=lambda item: -item[1])
        raised, lowered = ([item for item in ranked if sign * item[1] >= MIN_NATS] for sign in (1, -1))
        if shown := [*raised[:WORD_COUNT], *lowered[-WORD_COUNT:]]:
            figure = word_bars([{"token": token, "nats": nats} for token, nats in shown])
            yield Chart(figure, f"{title}, {model}" if model else title)


def _value_table(row: Row) -> Table | None:
    contexts = list(row["posterior"])
    formats = {"token": "", **{f"nats given {context}": ".3f" for context in contexts}}
    formats |= {"ratio": "+.3f", **{f"p({context})": ".3f" for context in contexts}}
    cells = [
        {
            "token": readable_token(token["token"]),
            "ratio": token.get("ratio"),
            **{f"nats given {context}": token["nats"][context] for context in contexts},
            **{f"p({context})": token["posterior"][context] for context in contexts},
        }
        for token in row["tokens"]
    ]
    return make_table(cells, formats, _text_name(row), is_folded=True)

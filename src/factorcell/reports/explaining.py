"""The pages of `factorcell explain`, which shades tokens by their log-likelihood ratio, and `factorcell contexts`.

Bars above and below the tokens show the signs to readers who cannot distinguish the colours.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from factorcell.evaluation.explaining.token_evidence import (
    STRENGTHS,
    has_evidence,
    readable_token,
    strength,
    token_separator,
    with_evidence,
)
from factorcell.reports import charts
from factorcell.reports.page import Chart, Page, Table, make_table

Row = Mapping[str, Any]

FULL_SHADE_NATS = 3.0  # log-likelihood ratio at which a token has the full shade
FULL_SHADE_OPACITY = 0.72  # low enough that text on the shade stays readable
MIN_NATS = 0.1  # smallest sum of ratios of a word in a chart
WORD_COUNT = 10  # tokens in the chart that favour the first context, and that favour the second
RATIO_REMARKS = (
    "the log-likelihood ratio of a token is log p(token | preceding tokens, {first}) - log p(token | preceding tokens, "
    "{second}) in nats; the ratios of a text, including its end (¶), add up to the ratio of the whole text",
    f"bars are thin from {STRENGTHS[0]:g} nats, thicker from {STRENGTHS[1]:g} and {STRENGTHS[2]:g}; the shade is full "
    f"from {FULL_SHADE_NATS:g} nats",
    "words in italics are out of vocabulary; grey words have no evidence: training saw them in none of the contexts",
)
POSTERIOR_REMARK = "posteriors are computed by Bayes' rule with a uniform prior"
MAX_NAMED_VALUES = 15
WORDS_REMARK = (
    "words: each bar is the change of the adapted softmax bias of a token, in nats; the effect of the context on the "
    "recurrent layer is not included"
)
MAP_REMARK = "maps: the embeddings on their first two principal axes"
SCALE = LinearSegmentedColormap.from_list(
    "scale", ["#b8401a", "#e2944f", "#b3b08c", "#5b9bb5", "#2b5f9e"]
)  # low to high


def explanation_page(name: str, rows: Sequence[Row], cautions: Sequence[str] = ()) -> str:
    """Return the page of `factorcell explain` for the model `name`."""
    contexts = list(rows[0]["posterior"])
    page = Page(f"Explanations by {name}", "factorcell explain", f"Compared: {', '.join(contexts)}.")
    page.add_findings(cautions)
    texts = _shaded_texts(rows)
    if texts:
        first, second = contexts
        page.remarks += [remark.format(first=first, second=second) for remark in RATIO_REMARKS]
        title = f"Words that favour {first} (right) or {second} (left), nats"
        page.add("Evidence", [word_chart(rows, title)])
    page.add("Probability of each context", tables=[_posterior_table(rows, contexts)])
    page.add("All tokens", tables=list(map(_value_table, rows)))
    page.remarks.append(POSTERIOR_REMARK)
    signs = zip(contexts, (1, -1), strict=False)
    legend = [{"name": name, "style": f"color: var(--ink); {_style(sign * FULL_SHADE_NATS)}"} for name, sign in signs]
    return page.render("explain.html", legend=legend, texts=texts)


def _posterior_table(rows: Sequence[Row], contexts: Sequence[str]) -> Table | None:
    ratio, supported_ratio = "ratio in nats", "without words without evidence"
    lines = []
    for row in rows:
        has_gaps = "ratio" in row and not all(map(has_evidence, row["tokens"]))
        line = {"text": row["text"], **row["posterior"], ratio: row.get("ratio")}
        lines.append({**line, supported_ratio: with_evidence(row)[0] if has_gaps else None})
    formats = {"text": "", **dict.fromkeys(contexts, ".1%"), ratio: "+.2f", supported_ratio: "+.2f"}
    return make_table(lines, formats)


def _shaded_texts(rows: Sequence[Row]) -> list[Row]:
    """Return the tokens of each text with their shades, for the templates; empty with more than two contexts."""
    return [
        {
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
    colour = charts.HIGHER if ratio > 0 else charts.LOWER
    rgb = ", ".join(str(round(255 * channel)) for channel in to_rgb(colour))
    opacity = FULL_SHADE_OPACITY * min(1.0, abs(ratio) / FULL_SHADE_NATS)
    style = f"background: rgba({rgb}, {opacity:.3f})"
    if level := strength(ratio):
        style += f"; border-{'top' if level > 0 else 'bottom'}: {abs(level)}px solid rgb({rgb})"
    return style


def word_chart(rows: Sequence[Row], title: str) -> Chart | None:
    """Return a chart of the tokens with evidence that have the largest sums of ratios in all texts, if any."""
    totals: dict[str, float] = defaultdict(float)
    for token in filter(has_evidence, itertools.chain.from_iterable(row["tokens"] for row in rows)):
        totals[readable_token(token["token"])] += token["ratio"]
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    raised, lowered = ([item for item in ranked if sign * item[1] >= MIN_NATS] for sign in (1, -1))
    shown = [*raised[:WORD_COUNT], *lowered[-WORD_COUNT:]]
    return Chart(charts.word_bars([{"token": token, "nats": nats} for token, nats in shown]), title) if shown else None


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
    return make_table(cells, formats, charts.truncate(row["text"], 40), is_folded=True)


def embeddings_page(name: str, results: Row) -> str:
    """Return the page with the results of `factorcell contexts` for the run `name`.

    `results` has variable (the name of the context variable), values (their number) and cautions (sentences). Its other
    items are empty if they were not requested: neighbours (rows), words (entries with context, against and rows) and
    maps (entries with column, points and share of the variance).
    """
    page = Page(f"What {name} has learned about contexts", "factorcell contexts")
    page.lead = f"{results['values']:,} values of {results['variable']}." if results["variable"] else ""
    page.add_findings(results["cautions"])
    words = []
    for entry in results["words"]:
        title = f"{entry['context']} against {entry['against']}"
        if entry["rows"]:
            words.append(Chart(charts.word_bars(entry["rows"]), title))
        else:
            page.remarks.append(f"{title}: no word with evidence in the training texts")
    page.add("Words that a context raises and lowers", words)
    page.add("Maps", list(map(_map, results["maps"])))
    page.add("Neighbours", tables=[_neighbours(results["neighbours"])])
    page.remarks += [WORDS_REMARK] if words else []
    page.remarks += [MAP_REMARK] if results["maps"] else []
    return page.render()


def _neighbours(rows: Sequence[Row]) -> Table | None:
    title = "nearest neighbours (cosine of the embeddings)"
    neighbours: dict[str, list[str]] = {}  # by value
    for row in rows:
        neighbours.setdefault(row["value"], []).append(f"{row['near']} ({row['cosine']:.2f})")
    lines = [{"value": value, title: ", ".join(names)} for value, names in neighbours.items()]
    return make_table(lines, ("value", title))


def _map(entry: Row) -> Chart:
    figure = embedding_map(entry["points"], entry["column"])
    return Chart(figure, f"Map by {entry['column']}, {entry['share']:.0%} of the variance")


@charts.styled()
def embedding_map(points: Sequence[Row], column: str) -> Figure:
    """Draw embeddings as points, coloured by groups or numbers (thesis 2018, figures 4.6 and 4.7)."""
    figure = Figure(figsize=(charts.WIDTH, 0.9 * charts.WIDTH))
    axes = figure.subplots()
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    axes.spines[:].set(visible=True, color=charts.RULE)
    axes.set_xticks([])
    axes.set_yticks([])
    if "number" in points[0]:
        _draw_numbers(figure, axes, points, f"mean {column}")
    else:
        _draw_groups(figure, axes, points)
    _add_names(figure, axes, points)
    return figure


def _draw_groups(figure: Figure, axes: Axes, points: Sequence[Row]) -> None:
    counts = Counter(str(row["group"]) for row in points).most_common(len(charts.EXTRA_COLOURS))
    colours = dict(zip([group for group, count in counts if count > 1], charts.EXTRA_COLOURS, strict=False))
    members: dict[str, list[Row]] = {"": [], **{group: [] for group in colours}}
    for row in points:
        members[row["group"] if row["group"] in colours else ""].append(row)
    for group, rows in members.items():
        x, y = [row["x"] for row in rows], [row["y"] for row in rows]
        axes.scatter(x, y, 13, colours.get(group, charts.MUTED), alpha=0.6, lw=0, label=charts.truncate(group) or None)
    charts.add_legend(figure)


def _draw_numbers(figure: Figure, axes: Axes, points: Sequence[Row], title: str) -> None:
    """Draw points with a colour bar from the 2nd to the 98th percentile, so that outliers do not stretch it."""
    numbers = [row["number"] for row in points]
    low, high = np.quantile(numbers, (0.02, 0.98)).tolist()
    norm = Normalize(low, high if high > low else low + 1)
    x, y = [row["x"] for row in points], [row["y"] for row in points]
    marks = axes.scatter(x, y, 13, numbers, cmap=SCALE, norm=norm, alpha=0.85, lw=0)
    bar = figure.colorbar(marks, location="top", shrink=0.4, anchor=(1, 0), ticks=sorted({low, high}), format="{x:.3g}")
    bar.outline.set_visible(False)
    axes.set_title(title)


def _add_names(figure: Figure, axes: Axes, points: Sequence[Row]) -> None:
    """Write the names of the most frequent values, except where they would overlap, in the final layout."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    occupied: list[Bbox] = []
    for row in sorted(points, key=lambda row: -row["count"])[:MAX_NAMED_VALUES]:
        offset: Any = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "color": charts.INK}
        name = axes.annotate(charts.truncate(row["value"], 24), (row["x"], row["y"]), **offset)
        box = name.get_window_extent()
        if any(box.overlaps(other) for other in occupied):
            name.remove()
        occupied.append(box)

"""What a model has learned about contexts as one page."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.reports import embedding_charts, report

Row = Mapping[str, Any]

WORDS = (
    "By how many nats the adapted softmax bias raises or lowers a token, where the hidden state says nothing. What the "
    "recurrent layer does with the context is not in it."
)
MAP = (
    "Embeddings on their first two principal axes, which hold {x:.0%} and {y:.0%} of their variance, coloured by what "
    "a table says of their values."
)


def page(name: str, found: Row) -> str:
    """The page of what was `found` in the run called `name`.

    `found`: variable, values (their number); and rows of neighbours, words (each with context, against, rows), maps
    (each with column, points, ellipses, agreement, shares, dots) and predictions, as far as they were asked for.
    """
    sections = []
    if found["neighbours"]:
        sections.append(("Neighbours", _neighbours(found["neighbours"])))
    if found["words"]:
        sections.append(("Words that a context raises and lowers", _words(found["words"])))
    sections += [(f"The map by {entry['column']}", _map(entry, place)) for place, entry in enumerate(found["maps"])]
    if found["predictions"]:
        sections.append(("What the embedding tells of other columns", _predictions(found["predictions"])))
    values = f"{found['values']:,} values of {found['variable']}, each an embedding learned from its texts alone."
    return report.page(
        f"What {name} has learned about contexts",
        sections,
        kicker="factorcell contexts",
        lead=values if found["variable"] else "",
    )


def _neighbours(rows: Sequence[Row]) -> str:
    """The nearest values of each value, in a row of their own."""
    measure = "cosine" if "cosine" in rows[0] else "distance"
    cells = []
    for value in dict.fromkeys(row["value"] for row in rows):
        near = [f"{row['near']} ({row[measure]:.2f})" for row in rows if row["value"] == value]
        cells.append((value, ", ".join(near)))
    note = f'<p class="muted">Nearest first; in brackets the {measure} of the embeddings.</p>'
    return note + report.table(("value", "nearest values"), cells)


def _words(entries: Sequence[Row]) -> str:
    charts = []
    for place, entry in enumerate(entries):
        title = f"{entry['context']} against {entry['against']}"
        figure = embedding_charts.boosted_words(entry["rows"], title)
        charts.append(report.chart(figure, f"words-{place}", f"Words that are raised and lowered: {title}"))
    return f'<p class="muted">{WORDS}</p>\n<div class="grid">' + "\n".join(charts) + "</div>"


def _map(entry: Row, place: int) -> str:
    """The map by one column, and how far neighbours agree in it."""
    column = str(entry["column"])
    if entry["ellipses"] is None:
        figure = embedding_charts.map_of_numbers(entry["points"], f"mean {column}")
    else:
        figure = embedding_charts.map_of_groups(entry["points"], entry["ellipses"], dots=entry["dots"])
    note = MAP.format(x=entry["shares"][0], y=entry["shares"][1])
    if entry["ellipses"] is not None:
        note += " An ellipse reaches 1.5 deviations from the centre of its group."
    alt = f"Map of the embeddings by {column}"
    picture = report.chart(figure, f"map-{place}", alt, html.escape(note))
    return f"{picture}\n<p>{html.escape(agreed(entry['agreement']))}</p>\n{_groups(entry)}"


def _groups(entry: Row) -> str:
    """The groups with an ellipse, folded away."""
    if not entry["ellipses"]:
        return ""
    rows = [
        (row["group"], (row["count"], f"{row['count']:,}"), *(report.shown(row[key], ".2f") for key in ("x", "y")))
        for row in entry["ellipses"]
    ]
    table = report.table((entry["column"], "values", "centre, across", "centre, up"), rows)
    return f"<details><summary>The largest groups</summary>{table}</details>"


def agreed(row: Row) -> str:
    """The row of `embeddings.agreement` as a sentence."""
    of = f"({row['values']:,} values, by {row['measure']})"
    if "same" in row:
        share = f"{row['same']:.1%} of nearest neighbours have the same {row['column']}"
        return f"{share}; of any two values {row['chance']:.1%} {of}."
    return f"The {row['column']} of a value and of its nearest neighbour correlate with {row['correlation']:.2f} {of}."


def _predictions(rows: Sequence[Row]) -> str:
    note = (
        '<p class="muted">Gradient-boosted trees on the embedding, five-fold cross-validated: accuracy beside that of '
        "always saying the largest group, or the share of variance explained (R²).</p>"
    )
    cells = [_prediction(row) for row in rows]
    kept = [place for place in range(len(HEADER)) if any(line[place] is not None for line in cells)]
    return note + report.table([HEADER[place] for place in kept], [[line[place] for place in kept] for line in cells])


HEADER = ("column", "values", "groups", "accuracy", "largest group", "R²", "correlation")


def _prediction(row: Row) -> tuple[Any, ...]:
    """The cells of `HEADER`; an accuracy with its standard error over the folds."""
    accuracy = None
    if "accuracy" in row:
        error = row["deviation"] / math.sqrt(row["folds"])
        accuracy = (row["accuracy"], f"{row['accuracy']:.1%} ± {error:.1%}")
    counts = (report.shown(row.get(key), ",.0f") for key in ("values", "groups"))
    majority, r2, correlation = (report.shown(row.get(key), form) for key, form in FORMS)
    return (row["column"], *counts, accuracy, majority, r2, correlation)


FORMS = (("majority", ".1%"), ("r2", ".3f"), ("correlation", ".3f"))

"""Rescored n-best lists as a page."""

from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.evaluation.rescoring.rescore import align
from factorcell.reports import elements
from factorcell.reports.wording import rescoring_table

Row = Mapping[str, Any]

CHANGED = 20  # utterances that are shown word by word
MOST = 12  # values of a column that are shown at once
HOW = (
    "A hypothesis is chosen by the weighted sum of its scores, of log p by the model, in nats, and of its number of "
    "words; of equal ones the first in the list. The word error rate is the number of substituted, deleted and "
    "inserted words over the number of words of the references; words are separated by spaces. First is the first "
    "hypothesis of a list, oracle the one with the fewest errors. A gain is the reduction of the rate in percentage "
    "points, with its bootstrap 95 % interval (1,000 resamples of utterances) if there are at least ten utterances."
)


def page(
    name: str,
    model: str,
    rows: Sequence[Row],
    summary: Sequence[Row],
    weights: Mapping[str, float],
) -> str:
    """Return the page of the lists called `name`: rows of `rescore` and `summarise`, and the weights.

    Without references, which `summary` needs, it has the weights and the changed texts.
    """
    moved = [row for row in rows if row["place"] > 1]
    lead = f"{len(rows):,} utterances, their hypotheses scored by {model} in context: {len(moved):,} choices changed."
    if summary:
        overall = summary[0]
        rates = f"from {overall['first']:.1%} to {overall['rescored']:.1%}"
        lead += f" The word error rate goes {rates}; the best choice in every list would be {overall['oracle']:.1%}."
    scores = [{"score": key, "weight": f"{value:z.4g}"} for key, value in weights.items()]
    sections = [("Word errors", _errors(summary))] if summary else []
    sections.append(("Weights", elements.table(scores, ("score", "weight"))))
    if moved:
        sections.append(("What has changed most", _changes(moved)))
    sections.append(("How it was measured", f"<p>{elements.escaped(HOW)}</p>"))
    return elements.document(f"Rescoring {name}", sections, kicker="factorcell rescore", lead=lead)


def _errors(summary: Sequence[Row]) -> str:
    """Return the rates, overall and by the values of columns."""
    overall = summary[0]
    kinds = ", ".join(f"{overall[kind]:,} words {kind}" for kind in ("substituted", "deleted", "inserted"))
    content = f"{_rates(summary[:1])}<p>{kinds} in the chosen texts.</p>"
    for name in dict.fromkeys(row["by"] for row in summary[1:]):
        rows = [row for row in summary if row["by"] == name]
        content += f"<h3>By {elements.escaped(name)}</h3>{_rates(rows[:MOST])}"
        if rows[MOST:]:
            content += elements.folded(f"{len(rows) - MOST:,} more", _rates(rows[MOST:]))
    return content


def _rates(rows: Sequence[Row]) -> str:
    return elements.table(*rescoring_table(rows))


def _changes(rows: Sequence[Row]) -> str:
    """Return utterances whose chosen text differs most from the first: most errors fewer or more, else most words."""
    half = CHANGED // 2
    if all("errors" in row for row in rows):
        better = sorted(rows, key=lambda row: row["errors"] - row["errors_first"])
        parts = {
            "Fewer errors": [row for row in better if row["errors"] < row["errors_first"]][:half],
            "More errors": [row for row in reversed(better) if row["errors"] > row["errors_first"]][:half],
        }
        against = "Each against its reference"
    else:
        parts = {"Most words changed": sorted(rows, key=_edits, reverse=True)[:CHANGED]}
        against = "The chosen hypothesis against the first one"
    note = elements.note(f"{against}: missing words are struck out, other and additional words are in colour.")
    changes = {title: "".join(map(_change, part)) for title, part in parts.items() if part}
    columns = (f'<div class="said"><h3>{title}</h3>{part}</div>' for title, part in changes.items())
    return note + elements.grid(*columns)


def _edits(row: Row) -> int:
    return sum(kind != "equal" for kind, _, _ in align(row["first"], row["text"]))


def _change(row: Row) -> str:
    """Return an utterance: its reference if known, the first text and the chosen one with their differences."""
    known = "reference" in row
    against = row["reference"] if known else row["first"]
    head = f"{row['id']}, {'reference' if known else 'first'}"
    content = f'<p><span class="muted">{elements.escaped(head)}</span> {elements.escaped(against)}</p>'
    for name, text, errors in (("first", row["first"], "errors_first"), ("chosen", row["text"], "errors")):
        if known or name == "chosen":
            count = f", {row[errors]} {'error' if row[errors] == 1 else 'errors'}" if errors in row else ""
            content += f'<p><span class="muted">{name}{count}</span> {differences(against, text)}</p>'
    return f"<div>{content}</div>"


def differences(reference: str, text: str) -> str:
    """Return a text as HTML with its differences from the reference marked."""
    words = []
    for kind, expected, actual in align(reference, text):
        if kind in ("substituted", "deleted"):
            words.append(f"<del>{elements.escaped(expected)}</del>")
        if kind in ("substituted", "inserted"):
            words.append(f"<ins>{elements.escaped(actual)}</ins>")
        if kind == "equal":
            words.append(elements.escaped(actual))
    return " ".join(words)

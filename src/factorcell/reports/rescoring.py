"""Rescored n-best lists as a table for the terminal and as one page."""

from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.evaluation.rescoring.rescore import align
from factorcell.reports import elements
from factorcell.reports.wording import RESCORING, gain

Row = Mapping[str, Any]

CHANGED = 20  # utterances that are shown word by word
MOST = 12  # values of a column that are shown at once
HOW = (
    "A hypothesis is chosen by the weighted sum of its scores, of log p by the model, in nats, and of its words; of "
    "equal ones the first in the list. The word error rate is the number of words to substitute, delete and insert "
    "over that of the references' words, which are what spaces part. First is the list's first hypothesis, oracle the "
    "one with the fewest errors. A gain is how far the rate has fallen, in points, with the middle 95 % of 1,000 "
    "draws of utterances with replacement, where there are ten of them."
)
STYLE = (
    "<style>.said del { color: var(--muted); } .said ins { color: var(--accent); text-decoration: none; "
    "font-weight: 600; } .said p { margin: 2px 0; } .said div { margin: 14px 0; }</style>"
)


def page(
    name: str,
    model: str,
    rows: Sequence[Row],
    summary: Sequence[Row],
    weights: Mapping[str, float],
) -> str:
    """The page of the lists called `name`: rows of `rescore.rescore` and `summarise`, and the weights.

    Without references, which `summary` needs, it has the weights and what has changed.
    """
    moved = [row for row in rows if row["place"] > 1]
    lead = f"{len(rows):,} utterances, their hypotheses scored by {model} in context: {len(moved):,} are chosen anew."
    if summary:
        overall = summary[0]
        rates = f"from {overall['first']:.1%} to {overall['rescored']:.1%}"
        lead += f" The word error rate goes {rates}; the best choice in every list would be {overall['oracle']:.1%}."
    sections = [("Word errors", _errors(summary, weights))] if summary else [("Weights", _weights(weights))]
    if moved:
        sections.append(("What has changed most", _changes(moved)))
    sections.append(("How it was measured", f"<p>{elements.escaped(HOW)}</p>"))
    return elements.document(f"Rescoring {name}", sections, kicker="factorcell rescore", lead=lead)


def _errors(summary: Sequence[Row], weights: Mapping[str, float]) -> str:
    """The rates, overall and by the values of columns, and the weights."""
    overall = [row for row in summary if row["by"] == "all"]
    content = f"{_rates(overall)}{_kinds(overall[0])}{_weights(weights)}"
    for name in dict.fromkeys(row["by"] for row in summary if row["by"] != "all"):
        rows = [row for row in summary if row["by"] == name]
        content += f"<h3>By {elements.escaped(name)}</h3>{_rates(rows[:MOST])}"
        if rows[MOST:]:
            content += f"<details><summary>{len(rows) - MOST:,} more</summary>{_rates(rows[MOST:])}</details>"
    return content


def _rates(rows: Sequence[Row]) -> str:
    lines = [
        (
            row["value"],
            *(elements.formatted(row[name], ",.0f") for name in ("utterances", "words")),
            *(elements.formatted(row[name], ".2%") for name in ("first", "rescored", "oracle")),
            (row["gain"], gain(row)),
        )
        for row in rows
    ]
    return elements.table(("", *RESCORING[1:]), lines)


def _kinds(row: Row) -> str:
    kinds = ("substituted", "deleted", "inserted")
    return "<p>" + ", ".join(f"{row[kind]:,} words {kind}" for kind in kinds) + " in what was chosen.</p>"


def _weights(weights: Mapping[str, float]) -> str:
    return elements.table(("score", "weight"), [(name, (value, f"{value:z.4g}")) for name, value in weights.items()])


def _changes(rows: Sequence[Row]) -> str:
    """Utterances whose chosen text differs most from the first: most errors fewer or more, else most words."""
    by_errors = all("errors" in row for row in rows)
    note = "Each against what was said" if by_errors else "What was chosen against what came first"
    legend = "words that are missing are struck out, words in their place or too many are set apart"
    if by_errors:
        better = sorted(rows, key=lambda row: row["errors"] - row["errors_first"])
        gained = [row for row in better if row["errors"] < row["errors_first"]][: CHANGED // 2]
        lost = [row for row in reversed(better) if row["errors"] > row["errors_first"]][: CHANGED // 2]
        parts = [("Fewer errors", gained), ("More errors", lost)]
    else:
        parts = [("Most words changed", sorted(rows, key=_edits, reverse=True)[:CHANGED])]
    content = f'{STYLE}<p class="muted">{note}: {legend}.</p><div class="grid">'
    for title, part in parts:
        if part:
            content += f'<div class="said"><h3>{title}</h3>{"".join(map(_change, part))}</div>'
    return content + "</div>"


def _edits(row: Row) -> int:
    return sum(kind != "equal" for kind, _, _ in align(row["first"], row["text"]))


def _change(row: Row) -> str:
    """An utterance: what was said, the first text and the chosen one with their differences."""
    lines = [("first", row["first"]), ("chosen", row["text"])] if "reference" in row else [("chosen", row["text"])]
    against = row.get("reference", row["first"])
    title = "said" if "reference" in row else "first"
    content = f'<p><span class="muted">{elements.escaped(row["id"])}, {title}</span> {elements.escaped(against)}</p>'
    for name, text in lines:
        errors = {"first": "errors_first", "chosen": "errors"}[name]
        count = f", {row[errors]} {'error' if row[errors] == 1 else 'errors'}" if errors in row else ""
        content += f'<p><span class="muted">{name}{count}</span> {differences(against, text)}</p>'
    return f"<div>{content}</div>"


def differences(reference: str, text: str) -> str:
    """A text as HTML, its differences from the reference marked."""
    words = []
    for kind, said, read in align(reference, text):
        if kind in ("substituted", "deleted"):
            words.append(f"<del>{elements.escaped(said)}</del>")
        if kind in ("substituted", "inserted"):
            words.append(f"<ins>{elements.escaped(read)}</ins>")
        if kind == "equal":
            words.append(elements.escaped(read))
    return " ".join(words)

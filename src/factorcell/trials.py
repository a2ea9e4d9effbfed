"""The trials of a search as a table and as one page: the best ones, what they trade, which options matter.

A row: number, state, model, params, perplexity, and where known perplexity_known, accuracy, parameters, minutes.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from factorcell import plots, report, scatter

Row = Mapping[str, Any]

FIGURES = {"perplexity": ".2f", "perplexity_known": ".2f", "accuracy": ".1%", "parameters": ",.0f", "minutes": ".1f"}
ENOUGH = 5  # complete trials, below which an option's share in the perplexity is not told


def plain(value: Any) -> str:
    """What was drawn, short: numbers to three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def options(rows: Sequence[Row]) -> list[str]:
    """All options that the rows have drawn."""
    return list(dict.fromkeys(name for row in rows for name in row["params"]))


def table(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows flat, what was drawn beside the figures, and the names of their columns."""
    flat = []
    for row in rows:
        drawn = {name: plain(value) for name, value in row["params"].items()}
        flat.append({**row, "number": str(row["number"]), **drawn})
    return flat, ["number", "state", "model", *FIGURES, *options(rows)]


def rank_correlation(rows: Sequence[Row], name: str) -> float | None:
    """Spearman's correlation of a numeric option with the perplexity of `rows`; None where it means nothing."""
    pairs = [(row["params"][name], row["perplexity"]) for row in rows if name in row["params"]]
    if len(pairs) < ENOUGH or any(isinstance(value, str) for value, _ in pairs):
        return None
    first, second = (_ranks(np.array(side, dtype=float)) for side in zip(*pairs, strict=True))
    if first.std() == 0 or second.std() == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Any) -> Any:
    """The rank of each value, equal ones sharing their mean."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def page(name: str, rows: Sequence[Row], target: str | None) -> str:
    """The page of a search; `rows` with the best first, `target` the column that accuracy is of."""
    complete = [row for row in rows if row["state"] == "complete"]
    drawn = [row for row in rows if row["state"] in ("complete", "pruned")]
    sections = [("The best", _table(complete[:10]) if complete else "<p>No trial is complete yet.</p>")]
    if any(row.get("accuracy") is not None for row in complete):
        figure = scatter.accuracy_against_perplexity(complete)
        note = (
            f"Each mark is a trial: the accuracy of telling {html.escape(str(target))} by Bayes' rule, and perplexity."
        )
        sections.append(("Perplexity and accuracy", report.chart(figure, "accuracy", "Accuracy over perplexity", note)))
    if drawn and options(drawn):
        strengths = {option: rank_correlation(complete, option) for option in options(drawn)}
        order = sorted(strengths, key=lambda option: -abs(strengths[option] or 0.0))
        notes = [(option, "" if strengths[option] is None else f"{strengths[option]:+.2f}") for option in order]
        figure = scatter.perplexity_by_option(drawn, [(option, note.replace("-", "−")) for option, note in notes])
        note = (
            "Perplexity over each option that varied. Beside its name: the rank correlation with the perplexity of the "
            "complete trials. Rings and outlines: the best trial has a ring; a pruned one is an outline, at the best "
            f"perplexity it had; an outlined triangle at the upper edge is more than {scatter.REACH:g} times the best."
        )
        sections.append(("Which options matter", report.chart(figure, "options", "Perplexity over each option", note)))
    sections.append(("All trials", f"<details><summary>All trials</summary>{_table(rows)}</details>"))
    counts = {state: sum(row["state"] == state for row in rows) for state in dict.fromkeys(r["state"] for r in rows)}
    lead = f"{len(rows)} trials: " + ", ".join(f"{count} {state}" for state, count in counts.items()) + "."
    return report.page(f"A search: {name}", sections, kicker="factorcell tune", lead=lead)


def _table(rows: Sequence[Row]) -> str:
    drawn = options(rows)
    figures = [name for name in FIGURES if any(row.get(name) is not None for row in rows)]
    cells = [
        (
            str(row["number"]),
            row["state"],
            plots.titled(row["model"]),
            *(report.shown(row.get(name), FIGURES[name]) for name in figures),
            *((row["params"][name], plain(row["params"][name])) if name in row["params"] else None for name in drawn),
        )
        for row in rows
    ]
    header = ["trial", "state", "model", *(name.replace("_", " ") for name in (*figures, *drawn))]
    best = {header.index(name): name == "accuracy" for name in ("perplexity", "accuracy") if name in figures}
    return report.table(header, cells, best)

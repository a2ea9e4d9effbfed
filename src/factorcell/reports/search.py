"""The trials of a search as a table and as one page: the best ones, what they trade, which options matter.

A row: number, state, model, params, perplexity, and where known perplexity_known, accuracy, parameters, minutes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from factorcell.evaluation import statistics
from factorcell.evaluation.comparison import told_difference
from factorcell.finite import brief, is_number
from factorcell.reports import charts, elements, scatter

Row = Mapping[str, Any]

FIGURES = {"perplexity": ".2f", "perplexity_known": ".2f", "accuracy": ".1%", "parameters": ",.0f", "minutes": ".1f"}
BEHIND = "from best"  # the title of the differences in perplexity
ENOUGH = 5  # complete trials, below which an option's share in the perplexity is not reported

HOW = (
    "In brackets, what other development texts would make of the difference to the best trial, 95 times of 100; other "
    "trainings of the same options differ too. Figures in bold are better than those of all other trials by more than "
    "that."
)


def options(rows: Sequence[Row]) -> list[str]:
    """All options that the rows have drawn."""
    return list(dict.fromkeys(name for row in rows for name in row["params"]))


def table(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows flat, what was drawn beside the figures, and the names of their columns."""
    flat = []
    for row in rows:
        drawn = {name: brief(value) for name, value in row["params"].items()}
        flat.append({**row, "number": str(row["number"]), BEHIND: told_difference("gain", row), **drawn})
    return flat, ["number", "state", "model", *FIGURES, BEHIND, *options(rows)]


def rank_correlation(rows: Sequence[Row], name: str) -> float | None:
    """Spearman's correlation of a numeric option with the perplexity of `rows`; None where it means nothing."""
    pairs = [(row["params"][name], row["perplexity"]) for row in rows if name in row["params"]]
    if len(pairs) < ENOUGH or any(isinstance(value, str) for value, _ in pairs):
        return None
    found: float | None = statistics.rank_correlation(*zip(*pairs, strict=True))["r"]
    return found


def page(name: str, rows: Sequence[Row], target: str | None, logs: Collection[str]) -> str:
    """The page of a search. `rows`: the best first; `target`: the column told apart; `logs`: options drawn by ratio."""
    complete = [row for row in rows if row["state"] == "complete"]
    best = _table(complete[:10], ("perplexity", "accuracy", "parameters", "minutes")) + f'<p class="muted">{HOW}</p>'
    sections = [("The best", best if complete else "<p>No trial is complete yet.</p>")]
    figures = []
    if any(row.get("accuracy") is not None for row in complete):
        note = f"Accuracy of telling {elements.escaped(target)} by Bayes' rule, over perplexity: a mark is a trial."
        figure = scatter.accuracy_against_perplexity(complete)
        figures.append(elements.chart(figure, "accuracy", "Accuracy over perplexity", note))
    drawn = [row for row in rows if row["state"] in ("complete", "pruned") and is_number(row["perplexity"])]
    if drawn and options(drawn):
        figures.append(_by_option(drawn, complete, logs))
    if figures:
        sections.append(("What the trials show", '<div class="grid">' + "\n".join(figures) + "</div>"))
    every = _table([{**row, "params": {"state": row["state"], **row["params"]}} for row in rows], tuple(FIGURES))
    sections.append(("All trials", f"<details><summary>all {len(rows)}, the best first</summary>{every}</details>"))
    states = [row["state"] for row in rows]
    lead = f"{len(rows)} trials: {', '.join(f'{states.count(state)} {state}' for state in dict.fromkeys(states))}."
    return elements.document(f"A search: {name}", sections, kicker="factorcell tune", lead=lead)


def _by_option(drawn: Sequence[Row], complete: Sequence[Row], logs: Collection[str]) -> str:
    """The charts of the options, those that go with the perplexity first."""
    strengths = {option: rank_correlation(complete, option) for option in options(drawn)}
    order = sorted(strengths, key=lambda option: -abs(strengths[option] or 0.0))
    notes = {name: "" if strengths[name] is None else f"{strengths[name]:+.2f}".replace("-", "−") for name in order}
    caption = (
        "Perplexity over each option; beside its name the rank correlation of the two, of complete trials. "
        "The best trial has a ring. Pruned trials are hollow, at the best perplexity they had. "
        f"A cross at the upper edge is a perplexity of more than {scatter.REACH:g} times the best."
    )
    figure = scatter.perplexity_by_option(drawn, notes, logs)
    return elements.chart(figure, "options", "Perplexity over each option", caption)


def _table(rows: Sequence[Row], figures: Sequence[str]) -> str:
    """Rows with those of `figures` that there are, and all that was drawn."""
    drawn = options(rows)
    figures = [name for name in figures if any(row.get(name) is not None for row in rows)]
    cells = [
        (
            str(row["number"]),
            charts.titled(row["model"]),
            *(elements.formatted(row.get(name), FIGURES[name]) for name in figures),
            told_difference("gain", row),
            *(_drawn(row["params"].get(name)) for name in drawn),
        )
        for row in rows
    ]
    header = ["trial", "model", *(name.replace("_", " ") for name in (*figures, BEHIND, *drawn))]
    return elements.table(header, cells, elements.ahead(rows, figures, start=2))


def _drawn(value: Any) -> Any:
    """A cell: text as it is, a number with how it reads, None where the option was not drawn."""
    return value if value is None or isinstance(value, str) else (value, brief(value))

"""Rows of the trials of a search: their order, each in a line, and how far they are from the best."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from factorcell.evaluation import comparison
from factorcell.evaluation.comparison import Candidate
from factorcell.evaluation.results import Row, kept_texts
from factorcell.finite import brief
from factorcell.model.run import facts

BESIDE = ("gain", "gain_low", "gain_high", "ahead")


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Complete trials by perplexity, then the pruned ones, then the rest."""
    order = ["complete", "pruned"]
    return sorted(
        rows,
        key=lambda row: (
            order.index(row["state"]) if row["state"] in order else len(order),
            math.inf if row["perplexity"] is None else row["perplexity"],
            row["number"],
        ),
    )


def told(row: Row) -> str:
    """One trial in one line."""
    figures = "" if row["perplexity"] is None else f", perplexity {row['perplexity']:.2f}"
    figures += f", accuracy {row['accuracy']:.4f}" if "accuracy" in row else ""
    figures += f" ({row['error']})" if "error" in row else ""
    drawn = ", ".join(f"{name} {brief(value)}" for name, value in row["params"].items())
    return f"trial {row['number']} {row['state']}{figures}: {row['model']}, {drawn}"


def compared(rows: Sequence[Row], path: Callable[[int], Path]) -> list[Row]:
    """The rows, each with its `gain` over the best one on the development texts and with what it is `ahead` in.

    `path` is where the run of a trial is. What has no run, or no figures of texts, has no gain.
    """
    own = [row for row in ranked(rows) if row["folder"] and row["perplexity"] is not None]
    folders = [path(row["number"]) for row in own]
    texts = [kept_texts(folder, facts(folder).get("development_key")) for folder in folders]
    found = comparison.compared([Candidate("", [row], [one]) for row, one in zip(own, texts, strict=True)])
    beside = {row["number"]: {name: row[name] for name in BESIDE if name in row} for row in found}
    return [{**row, "ahead": [], **beside.get(row["number"], {})} for row in rows]

"""Context-specificity of several models: a table for the terminal, and one page."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.generation.generate import in_order
from factorcell.reports import plots, report, specificity_charts

Row = Mapping[str, Any]

COLUMNS = {
    "specificity": ("fit their context", ".1%"),
    "deviation": ("mean absolute deviation", ".2f"),
    "perplexity": ("perplexity of real texts", ".2f"),
    "accuracy": ("accuracy on real texts", ".1%"),
    "distinct_2": ("different bigrams", ".1%"),
    "repeated": ("trigrams said before", ".1%"),
    "copied_5": ("5-grams copied", ".1%"),
    "copied_8": ("8-grams copied", ".1%"),
    "tokens": ("tokens a text", ".1f"),
}
HOW = (
    "Each model wrote {texts:,} texts, as many for each value of {target}. A judge that has learned from real texts "
    "says which value each was written for: the share it gets right is how specific the texts are, and what it reaches "
    "on real texts is what can be expected. The mean absolute deviation is that of the predicted value from the wanted "
    "one. Accuracy on real texts is the model's own, by Bayes' rule. Trigrams said before are those that a text "
    "repeats; copied n-grams are found in the training texts too, and so are many of real texts that were held out."
)
AGAINST = {"accuracy": "accuracy on real texts", "rank": "FactorCell rank", "perplexity": "perplexity"}


def table(rows: Sequence[Row], real: Row) -> tuple[list[dict[str, str]], list[str]]:
    """A row of text for each model and for real texts, and the names of its columns."""
    shown = [
        {"model": row["name"], **{title: _plain(row.get(name), form) for name, (title, form) in COLUMNS.items()}}
        for row in (*rows, real)
    ]
    return shown, list(shown[0])


def page(target: str, rows: Sequence[Row], real: Row, correlations: Mapping[str, Row], examples: Sequence[Row]) -> str:
    """The page of the models' texts for the values of `target`."""
    header = ("model", *(title for title, _ in COLUMNS.values()))
    lines = [
        (row["name"], *(report.shown(row.get(name), form) for name, (_, form) in COLUMNS.items()))
        for row in (*rows, real)
    ]
    sections = [("How well the texts fit", _charts(rows, real, correlations) + report.table(header, lines))]
    sections.append(("By value", _by_value(target, rows, real)))
    sections.append(("What was written", _examples(target, examples)))
    told = HOW.format(texts=rows[0]["texts"], target=target)
    sections.append(("How it was measured", f"<p>{html.escape(told)}</p>"))
    lead = f"Texts that {len(rows)} models wrote for each value of {target}, judged by a classifier of real texts."
    return report.page(f"Does the text fit its {target}?", sections, kicker="factorcell specificity", lead=lead)


def _plain(value: Any, form: str) -> str:
    shown = report.shown(value, form)
    return "-" if shown is None else shown[1]


def _charts(rows: Sequence[Row], real: Row, correlations: Mapping[str, Row]) -> str:
    """The figures of the thesis, where the models have what they show."""
    charts = ""
    if any(row["accuracy"] is not None for row in rows):
        figure = specificity_charts.specificity_against_accuracy(rows, correlations, real["specificity"])
        error = max(row["specificity_error"] for row in rows)
        note = f"A mark is a model; one standard error of its share is up to {error:.1%}."
        charts += report.chart(figure, "accuracy", "Specificity over accuracy on real texts", note)
    figure = specificity_charts.specificity_against_rank_and_perplexity(rows, correlations, real["specificity"])
    charts += report.chart(figure, "rank", "Specificity over rank and over perplexity")
    content = f'<div class="grid">{charts}</div>'
    lines = [
        (
            AGAINST[name],
            f"{row['r']:.2f}",
            "–" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}",
            row["n"],
        )
        for name, row in correlations.items()
        if row["r"] is not None
    ]
    if lines:
        content += "<h3>Correlation of specificity</h3>"
        content += report.table(("with", "r", "middle 95 %", "models"), lines)
    return content


def _by_value(target: str, rows: Sequence[Row], real: Row) -> str:
    """How often the texts of each value are judged to fit."""
    names = in_order(real["confusion"]["labels"])
    lines = [
        (row["name"], *(report.shown(row["by_value"].get(name), ".1%") for name in names)) for row in (*rows, real)
    ]
    return report.table(("model", *(f"{target} {name}" for name in names)), lines)


def _examples(target: str, examples: Sequence[Row]) -> str:
    """The first texts of each value, a fold a model."""
    content = ""
    for name in dict.fromkeys(row["name"] for row in examples):
        lines = [(row["value"], row["text"]) for row in examples if row["name"] == name]
        summary = f"<summary>{html.escape(plots.titled(name))}</summary>"
        content += f"<details>{summary}{report.table((target, 'text'), lines)}</details>"
    return content

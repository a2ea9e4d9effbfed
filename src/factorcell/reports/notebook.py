"""Small HTML views of runs and results, which Jupyter shows instead of their `repr`.

The text has the colour of the notebook, and rules and shades are transparent, so that a view fits light and dark
themes. A view needs no script, and remains readable without its style, which some viewers of notebooks remove.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from factorcell.data.columns.values import natural_order
from factorcell.evaluation.bayes_rule import Classification
from factorcell.evaluation.comparison import Comparison
from factorcell.evaluation.perplexity import Evaluation
from factorcell.reports.explain import shade_legend, shaded_texts
from factorcell.reports.page import Table, make_table, render
from factorcell.runs import saved_results
from factorcell.runs.run import Run
from factorcell.runs.summary import columns_fact, model_facts, result_facts

MAX_ROWS = 20  # values, texts or results of a view
INTERVAL_NOTE = "Ranges in brackets or parentheses are 95 % confidence intervals over texts."

Row = Mapping[str, Any]


def _view(title: str, facts: Iterable[tuple[str, str]], *tables: Table | None, note: str = "", **values: Any) -> str:
    """Return the HTML of a view with facts, which are names and values, and tables."""
    facts_table = make_table([{"figure": name, "value": value} for name, value in facts], ("figure", "value"))
    shown = [table for table in (facts_table, *tables) if table is not None]
    return render("view.html", title=title, tables=shown, note=note, **{"legend": (), "texts": (), **values})


def _first_rows(rows: Sequence[Row], formats: Mapping[str, str], noun: str) -> tuple[Table | None, str]:
    """Return a table of the first rows, and a sentence about those that it omits."""
    note = f"The first {MAX_ROWS} of {len(rows):,} {noun} are shown." if len(rows) > MAX_ROWS else ""
    return make_table(rows[:MAX_ROWS], formats), note


def run_html(run: Run) -> str:
    """Return the view of a run: its model, its context variables, and its results as in the model card."""
    results = [row._asdict() for row in saved_results.measurements(saved_results.read(run.folder))]
    table, _ = _first_rows(results, dict.fromkeys(("table", "measure", "value"), ""), "results")
    facts = [columns_fact(run), *model_facts(run), *result_facts(run)]
    return _view(f"Run {run.folder.resolve().name}", facts, table, note=INTERVAL_NOTE)


def evaluation_html(result: Evaluation) -> str:
    """Return the view of an evaluation: its figures as in the model card."""
    facts = [(row.measure, row.value) for row in saved_results.measurements([result.row])]
    return _view(f"Evaluation of {result.row['texts']:,} texts", facts, note=INTERVAL_NOTE)


def classification_html(result: Classification) -> str:
    """Return the view of a classification: its metrics if texts have true values, otherwise the first predictions."""
    if not result.has_labels:
        rows = [{**row, "probability": max(row["probabilities"].values())} for row in result.rows()]
        table, note = _first_rows(rows, {"row": "", "predicted": "", "probability": ".4f"}, "texts")
        return _view(f"Classification of {len(rows):,} texts ({result.name})", (), table, note=note)
    metrics = result.metrics()
    facts = [(row.measure, row.value) for row in saved_results.measurements([metrics])]
    order = natural_order(result.names) or range(len(result.names))
    formats = {"value": "", "count": ",", "precision": ".4f", "recall": ".4f", "f1": ".4f", "auc": ".4f"}
    table, note = _first_rows([metrics["values"][index] for index in order], formats, "values")
    title = f"Classification of {metrics['texts']:,} texts, {metrics['left_out']:,} left out ({result.name})"
    return _view(title, facts, table, note=f"{INTERVAL_NOTE} {note}")


def comparison_html(comparison: Comparison) -> str:
    """Return the view of a comparison: the table and the notes of its text."""
    note = "; ".join(comparison.notes())
    return _view(f"Comparison of {len(comparison):,} models", (), make_table(*comparison.table()), note=note)


def explanation_html(rows: Sequence[Row]) -> str:
    """Return the view of an explanation: texts with shaded tokens, or their probabilities for over two contexts."""
    contexts = list(rows[0]["posterior"])
    posteriors = [
        {"text": row["text"][:80], **{f"p({context})": row["posterior"][context] for context in contexts}}
        for row in rows
    ]
    formats = {"text": "", **dict.fromkeys((f"p({context})" for context in contexts), ".3f")}
    table, note = _first_rows(posteriors, formats, "texts")
    note = f"The probabilities assume that all contexts are equally frequent. {note}"
    shades = {"legend": shade_legend(contexts), "texts": shaded_texts(rows[:MAX_ROWS])}
    return _view(f"Explanation of {len(rows):,} texts", (), table, note=note, **shades)

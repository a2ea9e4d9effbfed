"""Small HTML views of runs and results, which Jupyter shows instead of their `repr`.

The text has the colour of the notebook, and rules and shades are transparent, so that a view fits light and dark
themes. A view needs no script, and remains readable without its style, which some viewers of notebooks remove.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from factorcell.data.columns.values import natural_order
from factorcell.evaluation.bayes_rule import Classification
from factorcell.evaluation.comparison import Comparison, format_figure
from factorcell.evaluation.perplexity import Evaluation
from factorcell.io.finite import format_number
from factorcell.reports.explain import shade_legend, shaded_texts
from factorcell.reports.page import Table, make_table, render
from factorcell.runs import saved_results
from factorcell.runs.run import Run
from factorcell.runs.saved_results import (
    BASELINE_BITS,
    BASELINE_GAIN,
    format_difference,
    gain_title,
    measure_name,
)
from factorcell.runs.summary import model_facts, result_facts

MAX_ROWS = 20  # values, texts or results of a view
INTERVAL_NOTE = "Ranges in brackets or parentheses are 95 % confidence intervals over texts."

Row = Mapping[str, Any]


def _view(
    title: str, *tables: Table | None, note: str = "", legend: Sequence[Row] = (), texts: Sequence[Row] = ()
) -> str:
    """Return the HTML of a view."""
    shown = [table for table in tables if table is not None]
    return render("view.html", title=title, tables=shown, note=note, legend=legend, texts=texts)


def _figures(rows: Sequence[tuple[str, str | None]]) -> Table | None:
    """Return a table of names and values, without the rows that have no value."""
    return make_table([{"figure": name, "value": value} for name, value in rows if value], ("figure", "value"))


def run_html(run: Run) -> str:
    """Return the view of a run: its model, its context variables, and its results as in the model card."""
    rows = [*model_facts(run), *result_facts(run)]
    results = [row._asdict() for row in saved_results.measurements(saved_results.read(run.folder))[:MAX_ROWS]]
    result_table = make_table(results, ("table", "measure", "value"))
    return _view(f"Run {run.folder.resolve().name}", _figures(rows), result_table, note=INTERVAL_NOTE)


def evaluation_html(result: Evaluation) -> str:
    """Return the view of an evaluation, with the figures that the command `evaluate` prints."""
    row, baseline = result.row, result.row.get("baseline")
    rows = [
        ("texts", f"{row['texts']:,}"),
        ("targets", f"{row['targets']:,} ({row['unknown_share']:.1%} out of vocabulary)"),
        *((measure_name(name, row["unit"]), f"{row[name]:.2f}") for name in ("perplexity", "perplexity_known")),
        ("bits per byte", format_figure(row, "bits_per_byte") if "bits_per_byte" in row else None),
        *((gain_title(key, baseline), format_difference(row, key)) for key in (BASELINE_GAIN, BASELINE_BITS)),
    ]
    note = INTERVAL_NOTE
    if row.get("bits_per_byte_texts", row["texts"]) < row["texts"]:
        note += f" Bits per byte are computed over the {row['bits_per_byte_texts']:,} texts that were not cut."
    return _view("Evaluation", _figures(rows), note=note)


def classification_html(result: Classification) -> str:
    """Return the view of a classification: its metrics if texts have true values, otherwise the first predictions."""
    if not result.has_labels:
        return _predictions_html(result)
    metrics = result.metrics()
    rows = [
        ("accuracy", format_figure(metrics, "accuracy")),
        (f"accuracy of always predicting {metrics['majority_value']}", f"{metrics['majority']:.4f}"),
        ("macro F1", format_number(metrics["macro_f1"], ".4f")),
        ("mean AUC", format_number(metrics["auc"], ".4f")),
        ("calibration error", f"{metrics['calibration_error']:.4f}"),
        *((f"accuracy of {other['classifier']}", format_figure(other, "accuracy")) for other in metrics["others"]),
    ]
    order = natural_order(result.names) or range(len(result.names))
    values = [metrics["values"][index] for index in order]
    formats = {"value": "", "count": ",", "precision": ".4f", "recall": ".4f", "f1": ".4f", "auc": ".4f"}
    title = f"Classification of {metrics['texts']:,} texts, {metrics['left_out']:,} left out ({result.name})"
    note = INTERVAL_NOTE + _omission(len(values), "values")
    return _view(title, _figures(rows), make_table(values[:MAX_ROWS], formats), note=note)


def _predictions_html(result: Classification) -> str:
    """Return the view of a classification of texts without true values: the first predictions."""
    names, probabilities = result.predicted[:MAX_ROWS].tolist(), result.probabilities[:MAX_ROWS].max(1).tolist()
    rows = [
        {"row": str(row), "predicted": result.names[name], "probability": probability}
        for row, (name, probability) in enumerate(zip(names, probabilities, strict=True))
    ]
    table = make_table(rows, {"row": "", "predicted": "", "probability": ".4f"})
    count = len(result.truth)
    return _view(f"Classification of {count:,} texts ({result.name})", table, note=_omission(count, "texts").strip())


def _omission(count: int, noun: str) -> str:
    """Return a sentence, after a space, about the rows that a view omits; empty if it shows all of them."""
    return f" The first {MAX_ROWS} of {count:,} {noun} are shown." if count > MAX_ROWS else ""


def comparison_html(comparison: Comparison) -> str:
    """Return the view of a comparison: the table and the notes of its text."""
    note = "; ".join(comparison.notes())
    return _view(f"Comparison of {len(comparison):,} models", make_table(*comparison.table()), note=note)


def explanation_html(rows: Sequence[Row]) -> str:
    """Return the view of an explanation: texts with shaded tokens, or their probabilities for over two contexts."""
    contexts, shown = list(rows[0]["posterior"]), rows[:MAX_ROWS]
    posteriors = [
        {"text": row["text"][:80], **{f"p({context})": row["posterior"][context] for context in contexts}}
        for row in shown
    ]
    formats = {"text": "", **dict.fromkeys((f"p({context})" for context in contexts), ".3f")}
    note = "The probabilities assume that all contexts are equally frequent." + _omission(len(rows), "texts")
    title, table = f"Explanation of {len(rows):,} texts", make_table(posteriors, formats)
    return _view(title, table, note=note, legend=shade_legend(contexts), texts=shaded_texts(shown))

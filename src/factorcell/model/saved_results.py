"""Evaluation results saved in a run folder, each as a row of `results.jsonl`.

A later row replaces an earlier row with the same measure of the same texts, even if the two were computed in different
precisions. Therefore results that differ only by rounding are not listed twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from factorcell import files
from factorcell.finite import is_number

FILE = "results.jsonl"
PERPLEXITY_MEASURES = ("perplexity", "perplexity_known", "bits_per_byte")
CLASSIFICATION_MEASURES = ("accuracy", "macro_f1", "auc")


class Measurement(NamedTuple):
    """A measured value.

    Attributes:
        table: Name of the evaluated table, with its number of texts if several tables have the same name.
        measure: Name of the measure.
        value: The value.
        low: Lower end of the confidence interval, if there is one.
        high: Upper end of the confidence interval, if there is one.
        is_lower_bound: Whether the true value may be larger.
    """

    table: str
    measure: str
    value: float
    low: float | None = None
    high: float | None = None
    is_lower_bound: bool = False


class GainTable(NamedTuple):
    """Perplexities by value of a context column: a row for the texts of each value.

    Attributes:
        table: Name of the table.
        column: The column.
        baseline: Name of the model that the gains are relative to; None for the effect of removing the context.
        rows: A row for each value.
    """

    table: str
    column: str
    baseline: str | None
    rows: list[files.Row]


def read(folder: Path) -> list[files.Row]:
    """Read all results saved in a folder."""
    return files.read_rows(folder / FILE)


def append(folder: Path, row: Mapping[str, Any]) -> None:
    """Save a result in a folder."""
    files.append_row(folder / FILE, row)


def clear(folder: Path) -> None:
    """Delete the results saved in a folder, because a resumed training changes the weights that they are about."""
    (folder / FILE).unlink(missing_ok=True)


def latest_measurements(rows: Iterable[files.Row]) -> list[Measurement]:
    """Return the last value of every measure of every table, in the order in which the measures first occur."""
    # By table, measure and key of the texts: the number of texts, and the fields of the measurement.
    latest: dict[tuple[str, str, str], tuple[int, files.Row]] = {}
    for row in rows:
        scores = row.get("evaluation", row)
        for name in (*PERPLEXITY_MEASURES, *CLASSIFICATION_MEASURES):
            if is_number(scores.get(name)):
                texts_key, measure = scores.get("texts_key"), name.replace("_", " ")
                if name in CLASSIFICATION_MEASURES:
                    texts_key = row.get("accuracy_key", texts_key)
                    measure += _classification_settings(row)
                measured = scores.get("texts", 0), _measurement_fields(scores, name)
                measure += ", mixture" if scores.get("predictor") == "mixture" else ""
                latest[scores.get("table", ""), measure, str(texts_key)] = measured
    same_name_counts = Counter((table, measure) for table, measure, _ in latest)
    return [
        Measurement(f"{table} ({texts:,} texts)" if same_name_counts[table, measure] > 1 else table, measure, **fields)
        for (table, measure, _), (texts, fields) in latest.items()
    ]


def _measurement_fields(scores: files.Row, name: str) -> files.Row:
    """Return the fields of a `Measurement` for the value of the measure `name` in `scores`."""
    interval = {end: scores.get(f"{name}_{end}") for end in ("low", "high")}
    return {"value": scores[name], **interval, "is_lower_bound": bool(scores.get(f"{name}_bound"))}


def _classification_settings(row: files.Row) -> str:
    """Describe the priors of a classification and its other settings that differ from the defaults."""
    parts = [f" of {row['target']}"] if row.get("target") else []
    parts += [f", {row['priors']} priors"] if row.get("target") and "priors" in row else []
    parts += [", combined with a linear classifier"] if row.get("combination_weights") else []
    parts += [f", {row['samples']:,} samples"] if row.get("samples") else []
    return "".join(parts + ([", calibrated"] if "temperature" in row else []))


def latest_evaluation(rows: Iterable[files.Row]) -> files.Row:
    """Return the perplexities of the table evaluated last, with its last gain; an empty row without evaluations."""
    evaluations = [row["evaluation"] for row in rows if row.get("kind") == "evaluate"]
    latest: files.Row = {}
    for evaluation in evaluations:
        # Later fields replace earlier ones; a gain remains, even if later evaluations of the table have none.
        if all(evaluation.get(name) == evaluations[-1].get(name) for name in ("table", "texts_key", "predictor")):
            latest |= evaluation
    return latest


def latest_gains(rows: Iterable[files.Row]) -> list[GainTable]:
    """Return the last perplexities by value, for each combination of column, table and baseline."""
    latest: dict[tuple[Any, ...], GainTable] = {}
    for row in rows:
        if row.get("kind") == "evaluate":
            evaluation = row["evaluation"]
            table, baseline = evaluation.get("table", ""), evaluation.get("over")
            for column, rows_by_value in row["by"].items():
                key = (column, table, evaluation.get("texts_key"), baseline)
                latest[key] = GainTable(table, column, baseline, rows_by_value)
    return list(latest.values())

"""Evaluation results saved in a run folder, each as a row of `results.jsonl`.

A later row replaces an earlier row with the same measure of the same texts, even if the two were computed in different
precisions. Therefore results that differ only by rounding are not listed twice.

If the perplexity of a later row differs by more than rounding, the model has changed, or its reading of the table. The
differences to baselines and the perplexities by value that an earlier row has are then outdated.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from factorcell import files
from factorcell.bootstrap import Interval
from factorcell.finite import is_number

FILE = "results.jsonl"
PERPLEXITY_MEASURES = ("perplexity", "perplexity_known", "bits_per_byte")
CLASSIFICATION_MEASURES = ("accuracy", "macro_f1", "auc")
EFFECT = "effect of removing the context"
ROUNDING = 1e-3  # largest relative difference of perplexities in different precisions; 2e-4 was measured in bfloat16


class Measurement(NamedTuple):
    """A measured value.

    Attributes:
        table: Name of the evaluated table, with its number of texts if several tables have the same name.
        measure: Name of the measure.
        value: The value.
        low: Lower end of the confidence interval, if there is one.
        high: Upper end of the confidence interval, if there is one.
        is_lower_bound: Whether the true value may be larger.
        remark: What a reader must know to interpret the value, if anything.
    """

    table: str
    measure: str
    value: float
    low: float | None = None
    high: float | None = None
    is_lower_bound: bool = False
    remark: str | None = None


# A later evaluation replaces an earlier one with the same values of these fields.
EVALUATION_KEY = ("table", "texts_key", "predictor")
# The fields of an evaluation about its baseline: the gain, the difference in bits per byte, and what they include.
GAIN_FIELDS = (
    *("gain", "gain_low", "gain_high", "perplexity_without", "over", "only_unknown_users", "training_difference"),
    *("bits_per_byte_difference", "bits_per_byte_difference_low", "bits_per_byte_difference_high"),
    *("bits_per_byte_difference_bound", "bits_per_byte_baseline", "bits_per_byte_baseline_bound", "bits_per_byte_over"),
)


class GainTable(NamedTuple):
    """Perplexities by value of a context column: a row for the texts of each value.

    Attributes:
        table: Name of the table.
        column: The column.
        baseline: Name of the model that the gains are relative to; None for the effect of removing the context.
        rows: A row for each value.
        is_outdated: Whether a later evaluation shows that the run or the baseline has changed since.
    """

    table: str
    column: str
    baseline: str | None
    rows: list[files.Row]
    is_outdated: bool = False


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
        for scores, name, measure in _named_measures(row):
            if is_number(scores.get(name)):
                measure += ", mixture" if scores.get("predictor") == "mixture" else ""
                measured = scores.get("texts", 0), _measurement_fields(scores, name)
                latest[scores.get("table", ""), measure, str(scores.get("texts_key"))] = measured
    same_name_counts = Counter((table, measure) for table, measure, _ in latest)
    return [
        Measurement(f"{table} ({texts:,} texts)" if same_name_counts[table, measure] > 1 else table, measure, **fields)
        for (table, measure, _), (texts, fields) in latest.items()
    ]


def _named_measures(row: files.Row) -> Iterator[tuple[files.Row, str, str]]:
    """Yield the measures of a result: scores, the key of the measure in the scores, and its name with its settings."""
    scores = row.get("evaluation", row)
    if row.get("kind") != "classify":
        for name in PERPLEXITY_MEASURES:
            yield scores, name, measure_name(name, scores.get("unit"))
    for accuracies in _accuracies(row):
        target = f" of {accuracies['target']}" if accuracies.get("target") else ""
        for name in CLASSIFICATION_MEASURES:
            yield accuracies, name, f"{name.replace('_', ' ')}{target}, {accuracies['classifier']}"


def measure_name(name: str, unit: str | None) -> str:
    """Return the name of a measure with its unit, such as "perplexity per word"; `unit` is the unit of perplexities."""
    is_per_unit = unit and name.startswith("perplexity")
    return name.replace("_", " ") + (f" per {unit}" if is_per_unit else "")


def _measurement_fields(scores: files.Row, name: str) -> files.Row:
    """Return the fields of a `Measurement` for the value of the measure `name` in `scores`."""
    interval = {end: scores.get(f"{name}_{end}") for end in ("low", "high")}
    remark = scores.get("accuracy_remark") if name == "accuracy" else None
    return {"value": scores[name], **interval, "is_lower_bound": bool(scores.get(f"{name}_bound")), "remark": remark}


CALIBRATED, COMBINED = "calibrated", "combined with a linear classifier"  # ends of names of classifiers


def classifier_name(priors: str, samples: int = 0, *, is_calibrated: bool = False, is_combined: bool = False) -> str:
    """Return the name of the classifier that a model makes with priors and other settings that change predictions.

    Classifications of the same texts with different settings have different names, so none replaces another.
    """
    settings = [f"{samples:,} samples"] if samples else []
    settings += [CALIBRATED] if is_calibrated else []
    settings += [COMBINED] if is_combined else []
    return ", ".join(("model", f"{priors} priors", *settings))


def plain_classifier(name: str) -> str:
    """Return the name of the classifier before calibration or combination."""
    return name.removesuffix(f", {COMBINED}").removesuffix(f", {CALIBRATED}")


def is_model(scores: Mapping[str, Any]) -> bool:
    """Return whether the classifier of an accuracy is the model of the run, possibly combined with a linear one."""
    return str(scores["classifier"]).startswith("model,")


def describe_target(row: Mapping[str, Any]) -> str | None:
    """Return the name of what a result of `classify` predicts: a column, or the nearest point of a table of points."""
    points = row.get("points")
    if points is None:
        return row.get("target")
    limit = "" if points["within"] is None else f", within {points['within']:g}"
    return f"the nearest of {points['count']:,} points of {points['table']}{limit}"


def _accuracies(row: files.Row) -> list[files.Row]:
    """Return a row with the name, `classifier`, and the accuracy of each classifier of a result of `classify`.

    The first one is the classifier that was chosen; its row has all measures. `figure` names the figure of each text.
    """
    if row.get("kind") != "classify":
        return []  # `compare` saves its classifications as results of `classify` too
    name = classifier_name(
        row.get("priors", "uniform"),
        row.get("samples") or 0,
        is_calibrated="temperature" in row,
        is_combined=bool(row.get("combination_weights")),
    )
    target = describe_target(row)
    shared = {"target": target, **{field: row.get(field) for field in ("table", "texts", "texts_key", "majority")}}
    # Other classifiers, such as the linear one, do not use the run.
    of_model = {field: row.get(field) for field in ("predictor", "accuracy_remark", "accuracy_without_text")}
    chosen = {**row, **of_model, "target": target, "classifier": name, "figure": f"accuracy, {name}"}
    others = [
        {**shared, **(of_model if is_model(other) else {}), **other, "figure": f"accuracy, {other['classifier']}"}
        for other in row.get("others", ())
    ]
    return [chosen, *others]


def latest_accuracies(rows: Iterable[files.Row]) -> list[files.Row]:
    """Return the last accuracies of each classifier on each table, those of the last classification last.

    A classifier that was only compared with the chosen one has no `confusion` and no measures of values.
    """
    latest: dict[tuple[Any, ...], files.Row] = {}
    for row in rows:
        for scores in reversed(_accuracies(row)):
            key = tuple(scores.get(field) for field in ("table", "target", "texts_key", "classifier"))
            latest[key] = {**latest.pop(key, {}), **scores}
    return list(latest.values())


def latest_evaluations(rows: Iterable[files.Row]) -> list[files.Row]:
    """Return the last perplexities on each table, those of the table evaluated last at the end.

    `gains` has a row of `GAIN_FIELDS` for each baseline, the last one at the end, without outdated ones.
    """
    latest: dict[tuple[Any, ...], tuple[files.Row, dict[str | None, files.Row]]] = {}
    for row in rows:
        if row.get("kind") in ("evaluate", "compare"):
            evaluation = row.get("evaluation", row)
            key = tuple(evaluation.get(name) for name in EVALUATION_KEY)
            previous, gains = latest.pop(key, (evaluation, {}))
            if not _are_equal(previous.get("perplexity"), evaluation.get("perplexity")):
                gains = {}
            if gain := {name: evaluation[name] for name in GAIN_FIELDS if name in evaluation}:
                baseline = evaluation.get("over", evaluation.get("bits_per_byte_over"))
                gains = {**{name: fields for name, fields in gains.items() if name != baseline}, baseline: gain}
            omitted = (*GAIN_FIELDS, *CLASSIFICATION_MEASURES)
            latest[key] = {name: value for name, value in evaluation.items() if name not in omitted}, gains
    return [{**evaluation, "gains": list(gains.values())} for evaluation, gains in latest.values()]


def describe_gain(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names and values of the gain and the difference in bits per byte in a row of `GAIN_FIELDS`."""
    lines = []
    if gain := Interval.from_row(row, "gain"):
        lines.append((gain_title(row.get("over")), gain.to_text(".1f", scale=100.0, unit="%")))
    if difference := Interval.from_row(row, "bits_per_byte_difference"):
        bound = f"{row['bits_per_byte_difference_bound']} " if row.get("bits_per_byte_difference_bound") else ""
        lines.append((f"bits per byte above {row['bits_per_byte_over']}", bound + difference.to_text(".3f")))
    return lines


def gain_title(baseline: str | None) -> str:
    """Return the name of a gain over a baseline, or of the difference to the same run without context if it is None."""
    return f"gain over {baseline}" if baseline else EFFECT


def latest_gains(rows: Iterable[files.Row]) -> list[GainTable]:
    """Return the last perplexities by value, for each combination of column, table and baseline.

    They are outdated if the last evaluation of the table, or the last one with the baseline, has other perplexities.
    """
    latest: dict[tuple[Any, ...], tuple[files.Row, list[files.Row]]] = {}
    perplexities: dict[tuple[Any, ...], float | None] = {}  # the last ones of the run and of each baseline on a table
    for row in rows:
        if row.get("kind") in ("evaluate", "compare"):
            evaluation = row.get("evaluation", row)
            perplexities |= _perplexities_by_model(evaluation)
            for column, rows_by_value in row.get("by", {}).items():
                key = tuple(evaluation.get(name) for name in (*EVALUATION_KEY, "over"))
                latest[column, *key] = evaluation, rows_by_value
    return [
        GainTable(
            evaluation.get("table", ""),
            column,
            evaluation.get("over"),
            rows_by_value,
            not all(_are_equal(value, perplexities[key]) for key, value in _perplexities_by_model(evaluation).items()),
        )
        for (column, *_), (evaluation, rows_by_value) in latest.items()
    ]


def _perplexities_by_model(evaluation: files.Row) -> dict[tuple[Any, ...], float | None]:
    """Return the perplexities of the run and of its baseline in an evaluation, by texts and model."""
    key = tuple(evaluation.get(name) for name in EVALUATION_KEY)
    perplexities: dict[tuple[Any, ...], float | None] = {key: evaluation.get("perplexity")}
    if "perplexity_without" in evaluation:
        perplexities[*key, evaluation.get("over")] = evaluation["perplexity_without"]
    return perplexities


def _are_equal(first: float | None, second: float | None) -> bool:
    """Return whether two perplexities differ at most by rounding."""
    return first == second or (is_number(first) and is_number(second) and math.isclose(first, second, rel_tol=ROUNDING))

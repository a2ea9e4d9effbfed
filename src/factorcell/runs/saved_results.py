"""Results saved in a run folder: `results.jsonl` has a line for each measurement.

A measurement is identified by its kind ("train", "evaluate" or "classify"), table, target, predictor, classifier and
baseline. A later line replaces an earlier line of the same measurement.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from factorcell.bootstrap import Interval, format_ends
from factorcell.io import files
from factorcell.io.output import is_number

FILE = "results.jsonl"
IDENTITY = ("kind", "table", "target", "predictor", "classifier", "baseline")
DEVELOPMENT = "development texts"  # the table that training evaluates

UNKNOWN_CONTEXT_GAIN, BASELINE_GAIN = "gain_over_unknown_context", "gain_over_baseline"  # of perplexities
BASELINE_BITS, BASELINE_ACCURACY = "bits_per_byte_below_baseline", "accuracy_above_baseline"

# The format of each measured figure.
FIGURES = {
    "perplexity": ".2f",
    "perplexity_known": ".2f",
    "bits_per_byte": ".3f",
    "accuracy": ".4f",
    "macro_f1": ".4f",
    "auc": ".4f",
}
BEST_MARK = "*"  # follows a figure that is significantly better than all others
REFERENCES = (("majority", "majority class"), ("linear_accuracy", "linear baseline"))  # shown next to an accuracy


class Measurement(NamedTuple):
    """A measured `value` with its interval, as text; `figure` is its key in the row of its result."""

    table: str
    measure: str
    value: str
    figure: str


def read(folder: Path) -> list[files.Row]:
    """Read the last result of each measurement, those saved last at the end."""
    latest: dict[tuple[Any, ...], files.Row] = {}
    for row in files.read_rows(folder / FILE):
        key = tuple(row.get(name) for name in IDENTITY)
        latest.pop(key, None)
        latest[key] = row
    return list(latest.values())


def append(folder: Path, row: Mapping[str, Any]) -> None:
    """Save a result in a folder."""
    files.append_row(folder / FILE, row)


def gain_title(key: str, baseline: str | None = None) -> str:
    """Return the name of a difference from its key and the name of the baseline."""
    return {
        UNKNOWN_CONTEXT_GAIN: "gain over an unknown context (same model)",
        BASELINE_GAIN: f"gain over {baseline}",
        BASELINE_BITS: f"bits per byte below {baseline}",
        BASELINE_ACCURACY: f"accuracy above {baseline}",
    }[key]


def format_difference(row: Mapping[str, Any], key: str) -> str | None:
    """Format a difference in `row` with its interval; None if it is missing."""
    interval = Interval.from_row(row, key)
    if interval is None or key == BASELINE_BITS:
        return interval and interval.to_text(".3f")
    return interval.to_text(".1f", scale=100.0, unit=" pt" if key == BASELINE_ACCURACY else "%")


def format_figure(row: Mapping[str, Any], name: str) -> str:
    """Format a figure with its standard deviation, its interval, and the mark of a best figure."""
    number_format = FIGURES[name]
    deviation, low, high = (row.get(f"{name}_{part}") for part in ("deviation", "low", "high"))
    text = format(row[name], number_format) + ("" if deviation is None else f" ± {deviation:{number_format}}")
    text += BEST_MARK if name in row.get("ahead", ()) else ""
    return text if low is None or high is None else f"{text} {format_ends(low, high, number_format)}"


def measure_name(name: str, unit: str | None) -> str:
    """Return the name of a measure with its unit, such as "perplexity per word"; `unit` is the unit of perplexities."""
    suffix = ", in-vocabulary targets" if name == "perplexity_known" else ""
    unit_text = f" per {unit}" if unit and name.startswith("perplexity") else ""
    return name.removesuffix("_known").replace("_", " ") + unit_text + suffix


def measurements(rows: Sequence[Mapping[str, Any]]) -> list[Measurement]:
    """Return the measured values of results; of several values of one measure, the last one."""
    measured = []
    for row in rows:
        details = [f"of {row['target']}"] if row.get("target") else []
        details += [f"({row['classifier']})"] if row.get("classifier") else []
        predictor = f", {row['predictor']}" if row.get("predictor") else ""
        for name in FIGURES:
            if is_number(row.get(name)):
                references = REFERENCES if name == "accuracy" else ()
                values = [f"{title} {row[key]:.4f}" for key, title in references if is_number(row.get(key))]
                measure = " ".join([measure_name(name, row.get("unit")), *details]) + predictor
                value = ", ".join([format_figure(row, name), *values])
                measured.append(Measurement(row.get("table", ""), measure, value, name))
        for key in (UNKNOWN_CONTEXT_GAIN, BASELINE_GAIN, BASELINE_BITS):
            if text := format_difference(row, key):
                measure = gain_title(key, row.get("baseline")) + predictor
                measured.append(Measurement(row.get("table", ""), measure, text, key))
    latest = {(row.table, row.measure): row for row in measured}
    return list(latest.values())

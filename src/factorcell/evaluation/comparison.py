"""Comparison of models that were trained once or with several seeds, as one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorcell.bootstrap import Interval
from factorcell.data.columns.rows import ResultRows
from factorcell.evaluation.text_figures import Figures, Ratios, TextSums, common_texts, gain_from_nats
from factorcell.io.output import align_columns
from factorcell.runs.saved_results import (
    BASELINE_ACCURACY,
    BASELINE_BITS,
    BASELINE_GAIN,
    BEST_MARK,
    FIGURES,
    REFERENCES,
    UNKNOWN_CONTEXT_GAIN,
    format_difference,
    format_figure,
    gain_title,
    measure_name,
)

Row = dict[str, Any]

# For each compared figure: the name of its difference to the first model, and whether higher values are better.
COMPARED_FIGURES = {
    "perplexity": (BASELINE_GAIN, False),
    "bits_per_byte": (BASELINE_BITS, False),
    "accuracy": (BASELINE_ACCURACY, True),
}
GAINS = (UNKNOWN_CONTEXT_GAIN, BASELINE_GAIN)
DIFFERENCES = (*GAINS, BASELINE_BITS, BASELINE_ACCURACY)
NUMBER_FORMATS = {"majority": ".4f", "linear_accuracy": ".4f", "parameters": ",.0f", "minutes": ".2f"}
TITLES = {name: name for name in ("model", "parameters", "minutes")} | dict(REFERENCES)


@dataclass(frozen=True)
class ComparedModel:
    """The results of a model: for each training, a row of figures (`rows`) and the figures per text (`texts`)."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    texts: Sequence[Figures]
    is_deterministic: bool = False


class Comparison(ResultRows):
    """One row per model, with differences to the first model; its `repr` is a table.

    A row has `model` (the name), `trainings` (their number) and the figures. A figure of several trainings is their
    mean, and the standard deviation has the suffix `_deviation`. `gain_over_baseline` (of perplexities),
    `bits_per_byte_below_baseline` and `accuracy_above_baseline` are differences to the first model that has the
    figure, `baseline`; positive means better, and the ends of their intervals have the suffixes `_low` and `_high`.
    `ahead` lists the figures in which the model is significantly better than all others.
    """

    def __repr__(self) -> str:
        cells_of_rows, columns = self.table()
        cell_texts = [[cells.get(name, "-") for name in columns] for cells in cells_of_rows]
        return "\n".join([*align_columns([columns, *cell_texts]), *self.notes()])

    def table(self) -> tuple[list[dict[str, str]], list[str]]:
        """Return a dict from column to text for each row, and the columns in their order."""
        units = {str(row["unit"]) for row in self if row.get("unit")}
        titles = TITLES | {name: measure_name(name, min(units) if len(units) == 1 else None) for name in FIGURES}
        for name in DIFFERENCES:
            baselines = [row["baseline"][name] for row in self if name in row.get("baseline", ())]
            titles[name] = gain_title(name, baselines[0] if baselines else None)
        names = ["model", "perplexity", *GAINS, "bits_per_byte", BASELINE_BITS, "accuracy", BASELINE_ACCURACY]
        names += ["perplexity_known", *NUMBER_FORMATS]
        rows = [_cells(row) for row in self]
        names = [name for name in names if any(name in cells for cells in rows)]
        titled_rows = [{titles[name]: cells[name] for name in names if name in cells} for cells in rows]
        return titled_rows, [titles[name] for name in names]

    def notes(self) -> list[str]:
        """Return the lines of the legend below the table."""
        has_several_trainings = any(row["trainings"] > 1 for row in self)
        notes = ["± is the standard deviation over trainings"] if has_several_trainings else []
        if any(row.get(name) is not None for row in self for name in DIFFERENCES):
            sources = "texts and trainings" if has_several_trainings else "texts"
            notes.append(f"brackets hold 95 % confidence intervals over {sources}")
        if any(row["ahead"] for row in self):
            notes.append(f"{BEST_MARK} marks a figure that is significantly better than all others")
        if names := [str(row["model"]) for row in self if row.get("is_worse_than_counts")]:
            remedy = "train on more texts, or longer unless they stopped early, before you choose"
            notes.append(f"worse than n-gram counts: {', '.join(names)}; {remedy}")
        return notes


def compare_models(models: Sequence[ComparedModel]) -> Comparison:
    """Compare each model that read the same texts with the first one, on the texts that none of them omits."""
    rows = [_average_trainings(model) for model in models]
    for name in COMPARED_FIGURES:
        _compare_figure(name, models, rows)
    return Comparison(rows)


def _compare_figure(name: str, models: Sequence[ComparedModel], rows: Sequence[Row]) -> None:
    """Add to `rows` the differences in one figure to the first model that has it; mark the best model, if any."""
    difference_name, higher_is_better = COMPARED_FIGURES[name]
    pairs = [(model, row) for model, row in zip(models, rows, strict=True) if row.get(name) is not None]
    with_figure = [(model, row, _sums(model, name)) for model, row in pairs]
    compared = [entry for entry in with_figure if common_texts([with_figure[0][2], entry[2]]) is not None]
    deterministic = {index for index, (model, *_) in enumerate(compared) if model.is_deterministic}
    ratios = Ratios.from_sums([sums for *_, sums in compared], deterministic)
    if ratios is None or len(compared) < 2:
        return
    for index, (_, row, _) in enumerate(compared[1:], 1):
        difference = ratios.difference(index, 0) if higher_is_better else ratios.difference(0, index)
        row |= _difference_row(name, difference)
        row["baseline"] = {**row.get("baseline", {}), difference_name: compared[0][0].name}
    if len(compared) == len(with_figure) and (best := ratios.best_model(higher_is_better)) is not None:
        compared[best][1]["ahead"].append(name)


def _sums(model: ComparedModel, name: str) -> list[TextSums]:
    """Return for each training the contributions of all texts to a figure; an empty list if a training lacks them."""
    return [figures[name] for figures in model.texts] if all(name in figures for figures in model.texts) else []


def _average_trainings(model: ComparedModel) -> Row:
    """Return the mean figures of a model over its trainings; perplexities have geometric means."""
    row: Row = {**model.rows[0], "model": model.name, "trainings": len(model.rows), "ahead": []}
    for name in (BASELINE_GAIN, BASELINE_BITS, "baseline"):  # of another comparison
        row.pop(name, None)
    if len(model.rows) > 1:
        row.pop(UNKNOWN_CONTEXT_GAIN, None)  # of one training
    for name in (*FIGURES, "minutes"):
        values = [training[name] for training in model.rows if training.get(name) is not None]
        if len(values) > 1:
            has_geometric_mean = name.startswith("perplexity")
            row[name] = float(np.exp(np.mean(np.log(values))) if has_geometric_mean else np.mean(values))
            row[f"{name}_deviation"] = float(np.std(values, ddof=1))
    for name in ("bits_per_byte", "accuracy") if len(model.rows) > 1 else ():
        for end in ("low", "high"):
            row.pop(f"{name}_{end}", None)  # of one training
        if ratios := Ratios.from_sums([_sums(model, name)]):
            row |= ratios.interval(0).to_row(name)
    return row


def _cells(row: Row) -> dict[str, str]:
    cells = {"model": str(row["model"])}
    cells |= {name: format_figure(row, name) for name in FIGURES if row.get(name) is not None}
    if row.get("perplexity_known") == row.get("perplexity"):
        cells.pop("perplexity_known", None)  # all targets are in the vocabulary
    for name in DIFFERENCES:
        if text := format_difference(row, name):
            cells[name] = text
    return cells | {name: format(row[name], form) for name, form in NUMBER_FORMATS.items() if row.get(name) is not None}


def difference_to_baseline(model: Figures, baseline: Figures) -> Row:
    """Return the differences of the figures of `model` to those of `baseline` that are comparable, with intervals."""
    row: Row = {}
    for name in ("perplexity", "bits_per_byte"):
        if name in model and name in baseline and (ratios := Ratios.from_sums([[baseline[name]], [model[name]]])):
            row |= _difference_row(name, ratios.difference(0, 1))
    return row


def _difference_row(name: str, difference: Interval) -> Row:
    """Return the entries of a row about a difference in a figure; that of log perplexities becomes a gain."""
    difference_name, _ = COMPARED_FIGURES[name]
    return (gain_from_nats(difference) if name == "perplexity" else difference).to_row(difference_name)

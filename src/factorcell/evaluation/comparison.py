"""Comparison of figures, such as perplexities, of models that were trained once or with several seeds.

Differences between two models have confidence intervals over texts and trainings (`statistics`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorcell.bootstrap import Interval
from factorcell.escapes import align_columns
from factorcell.evaluation import statistics
from factorcell.evaluation.statistics import Ratios
from factorcell.evaluation.text_figures import Figures, TextSums

Row = dict[str, Any]

# For each compared figure: the name of its difference to the first model, and whether higher values are better.
COMPARED_FIGURES = {
    "perplexity": ("gain", False),
    "perplexity_known": ("gain_known", False),
    "bits_per_byte": ("bits_per_byte_difference", False),
    "accuracy": ("accuracy_difference", True),
    "specificity": ("specificity_difference", True),
}
FIGURE_FORMATS = {"perplexity": ".2f", "perplexity_known": ".2f", "bits_per_byte": ".3f", "accuracy": ".4f"}
AVERAGED_FIGURES = ("perplexity", "perplexity_known", "bits_per_byte", "accuracy", "macro_f1", "auc", "minutes")
BEST_MARK = "*"  # follows a figure that is significantly better than all others
LOWER_BOUND_MARK = "≥"  # precedes a lower bound
LOWER_BOUND_NOTE = "it omits the bits that restore original texts from tokens (unknown words, case, white space)"


@dataclass(frozen=True)
class ComparedModel:
    """The results of a model: for each of its trainings, a row of figures (`rows`) and the figures per text (`texts`).

    A deterministic model, such as an n-gram model, has one training.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    texts: Sequence[Figures]
    is_deterministic: bool = False


@dataclass(frozen=True)
class Comparison:
    """A sequence of one row per model, with differences to the first model; `str` formats it as a table.

    A row has `model` (the name), `trainings` (their number) and the figures. A figure of several trainings is their
    mean; its standard deviation has the suffix `_deviation`. `gain`, `gain_known`, `bits_per_byte_difference` and
    `accuracy_difference` are differences to the first model that has the figure; the ends of their intervals have the
    suffixes `_low` and `_high`. `ahead` lists the figures in which the model is significantly better than every other
    one. `bits_per_byte_low` and `bits_per_byte_high` are the interval of `bits_per_byte`, and `bits_per_byte_bound` is
    whether it is only a lower bound.
    """

    rows: Sequence[Row]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __str__(self) -> str:
        lines, columns = self.table()
        cells = [[line.get(name, "-") for name in columns] for line in lines]
        return "\n".join([*align_columns([[name.replace("_", " ") for name in columns], *cells]), *self.notes()])

    def table(self) -> tuple[list[dict[str, str]], list[str]]:
        """Return a dict from column to text for each row, and the columns in their order."""
        titles = self.titles()
        lines = [_cells(row, titles) for row in self.rows]
        gain, bits, accuracy = (
            titles.get(COMPARED_FIGURES[name][0], "") for name in ("perplexity", "bits_per_byte", "accuracy")
        )
        columns = ("model", "perplexity", "perplexity_known", gain, "bits_per_byte", bits, "accuracy", accuracy)
        return lines, [name for name in (*columns, "parameters", "minutes") if any(name in line for line in lines)]

    def titles(self) -> dict[str, str]:
        """Return the column title of each difference, such as "gain over unadapted" for `gain`."""
        first = {
            name: next((str(row["model"]) for row in self.rows if row.get(name) is not None), "")
            for name in ("perplexity", "bits_per_byte", "accuracy")
        }
        titles = {
            "gain": f"gain over {first['perplexity']}",
            "bits_per_byte_difference": f"bits per byte above {first['bits_per_byte']}",
            "accuracy_difference": f"accuracy above {first['accuracy']}",
        }
        return {name: title for name, title in titles.items() if any(row.get(name) is not None for row in self.rows)}

    def notes(self) -> list[str]:
        """Return the lines of the legend below the table."""
        several = any(row["trainings"] > 1 for row in self.rows)
        notes = ["± is the standard deviation over trainings"] if several else []
        if self.titles():
            sources = "texts and trainings" if several else "texts"
            notes.append(f"brackets hold 95 % confidence intervals over {sources}")
        if any(row["ahead"] for row in self.rows):
            notes.append(f"{BEST_MARK} marks a figure that is significantly better than all others")
        rows = [row for row in self.rows if row.get("bits_per_byte") is not None]
        if any(row.get("bits_per_byte_texts", 0) < row.get("texts", 0) for row in rows):
            each = ", ".join(f"{row['model']} {row['bits_per_byte_texts']:,} of {row['texts']:,}" for row in rows)
            of_differences = "differences are computed over the texts that neither model truncated"
            notes.append(
                f"bits per byte are computed over the texts that were not truncated ({each}); {of_differences}"
            )
        if any(row.get("bits_per_byte_bound") for row in rows):
            notes.append(f"{LOWER_BOUND_MARK} marks a lower bound: {LOWER_BOUND_NOTE}")
        return notes


def compare_models(models: Sequence[ComparedModel], seed: int = 0) -> Comparison:
    """Compare each model with the first one, with intervals over texts (bootstrapped with `seed`) and over trainings.

    If all models read the same texts, the intervals use the texts that no model omits; otherwise, those that neither
    the model nor the first one omits.
    """
    rows = [_average_trainings(model) for model in models]
    for name, (difference, higher_is_better) in COMPARED_FIGURES.items():
        indices = [index for index, row in enumerate(rows) if row.get(name) is not None]
        sums = [_sums(models[index], name) for index in indices]
        deterministic = {place for place, index in enumerate(indices) if models[index].is_deterministic}
        joint = Ratios.from_sums(sums, seed, deterministic) if len(sums) > 1 else None  # None if the texts differ
        for place, index in enumerate(indices[1:], start=1):
            deterministic_in_pair = {side for side, member in enumerate((0, place)) if member in deterministic}
            if ratios := joint or Ratios.from_sums([sums[0], sums[place]], seed, deterministic_in_pair):
                second = place if joint else 1
                if name.startswith("perplexity"):
                    interval = statistics.gain_from_nats(ratios.difference(0, second))
                else:
                    interval = ratios.difference(second, 0)
                rows[index] |= interval.to_row(difference)
        if (
            joint
            and (best := joint.best_model(higher_is_better)) is not None
            and _is_comparable(rows[indices[best]], name, sums)
        ):
            rows[indices[best]]["ahead"].append(name)
    return Comparison(rows)


def _is_comparable(row: Row, name: str, models: Sequence[Sequence[TextSums]]) -> bool:
    """Return whether figure `name` of `row` may be marked as the best.

    A lower bound may be marked only if all models read the same tokens.
    """
    return not row.get(f"{name}_bound") or len({sums.key for trainings in models for sums in trainings}) == 1


def _sums(model: ComparedModel, name: str) -> list[TextSums]:
    """Return the contributions of all texts to a figure for each training; empty unless all trainings have them."""
    return [texts[name] for texts in model.texts] if all(name in texts for texts in model.texts) else []


def _average_trainings(model: ComparedModel) -> Row:
    """Return the mean figures of a model over its trainings; perplexities have geometric means."""
    row: Row = {**model.rows[0], "model": model.name, "trainings": len(model.rows), "ahead": []}
    for name in AVERAGED_FIGURES:
        values = [training[name] for training in model.rows if training.get(name) is not None]
        if len(values) > 1:
            is_perplexity = name.startswith("perplexity")
            row[name] = float(np.exp(np.mean(np.log(values))) if is_perplexity else np.mean(values))
            row[f"{name}_deviation"] = float(np.std(values, ddof=1))
    if len(model.rows) > 1 and (ratios := Ratios.from_sums([_sums(model, "bits_per_byte")])):
        row |= ratios.interval(0).to_row("bits_per_byte")
    return row


def _cells(row: Row, titles: Mapping[str, str]) -> dict[str, str]:
    cells = {"model": str(row["model"])}
    cells |= {
        name: format_figure(row, name, form) for name, form in FIGURE_FORMATS.items() if row.get(name) is not None
    }
    cells |= {title: text for name, title in titles.items() if (text := format_difference(name, row))}
    forms = {"parameters": ",.0f", "minutes": ".2f"}
    return cells | {name: format(row[name], form) for name, form in forms.items() if row.get(name) is not None}


def format_figure(row: Mapping[str, Any], name: str, form: str) -> str:
    """Format a figure with its standard deviation, its interval, and the marks for a best figure or a lower bound."""
    deviation, low, high = (row.get(f"{name}_{part}") for part in ("deviation", "low", "high"))
    text = format(row[name], form) + ("" if deviation is None else f" ± {deviation:{form}}")
    text += BEST_MARK if name in row["ahead"] else ""
    text += "" if low is None or high is None else f" [{low:{form}}, {high:{form}}]"
    return f"{LOWER_BOUND_MARK} {text}" if row.get(f"{name}_bound") else text


def format_difference(name: str, row: Mapping[str, Any]) -> str | None:
    """Format a difference in `row`: gains in per cent, accuracies in percentage points; None if it is missing."""
    interval = Interval.from_row(row, name)
    if name.startswith("bits"):
        return interval and interval.to_text(".3f")
    return interval and interval.to_text(".1f", 100.0, "%" if name.startswith("gain") else " pt")
